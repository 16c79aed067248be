"""Writes the files of a character tokenizer in the format that transformers reads."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rl_sync.tasks.tokenizers.tokenizer import EOS_ID, PAD_ID, CharacterTokenizer

PAD, EOS, IMAGE = "<|pad|>", "<|end|>", "<|image|>"


def tokenizer_files(tokenizer: CharacterTokenizer) -> dict[str, str]:
    """Returns the contents of the files by name; the files encode every text as `tokenizer` does.

    A character outside the charset is an error there, too.
    """
    vocabulary = {PAD: PAD_ID, EOS: EOS_ID}
    vocabulary |= {character: tokenizer.encode(character)[0] for character in tokenizer.charset}
    if tokenizer.shows_images:
        vocabulary[IMAGE] = tokenizer.image_id()
    same = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    same.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    same.decoder = decoders.Fuse()
    same.add_special_tokens([PAD, EOS, *[IMAGE] * tokenizer.shows_images])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": EOS}
    return {
        "tokenizer.json": same.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(about, indent=2) + "\n",
    }


def token_ids(tokenizer: CharacterTokenizer) -> dict[str, int | None]:
    """Returns the special token ids for a model's config."""
    return {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
