"""The character tokenizer in the files that transformers reads a tokenizer from."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rl_sync.tasks.tokenizer import EOS_ID, PAD_ID, CharacterTokenizer

PAD, EOS = "<|pad|>", "<|end|>"


def tokenizer_files(tokenizer: CharacterTokenizer) -> dict[str, str]:
    """The files' contents by name; read back, they give the same ids for the same texts.

    A character that the tokenizer does not know is an error there as it is here.
    """
    vocabulary = {PAD: PAD_ID, EOS: EOS_ID}
    vocabulary |= {character: tokenizer.encode(character)[0] for character in tokenizer.charset}
    same = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    same.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    same.decoder = decoders.Fuse()
    same.add_special_tokens([PAD, EOS])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": EOS}
    return {
        "tokenizer.json": same.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(about, indent=2) + "\n",
    }


def token_ids(tokenizer: CharacterTokenizer) -> dict[str, int | None]:
    """What a model's config says of the tokenizer."""
    return {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
