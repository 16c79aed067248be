"""Directories with everything of a tiny checkpoint that sees: model, tokenizer, image processor."""

import json
import shutil
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.tasks.pictures import checkpoints
from tests.tasks.pictures.vocabularies import GEMMA_TEMPLATE, SMOLVLM_TEMPLATE

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz ?\n:."


def seeing_gemma3(directory):
    """Copies the tiny random Gemma 3 with vision: an image is a tile of 16 pixels, 4 tokens."""
    named = {0: "<pad>", 1: "<end_of_turn>", 2: "<bos>", 3: "<start_of_turn>"}
    named |= {58: "<start_of_image>", 59: "<end_of_image>", 60: "<image_soft_token>"}
    checkpoints.gemma3(directory, side=16)
    return _filled(directory, "gemma3_vision", named, "<end_of_turn>", GEMMA_TEMPLATE)


def seeing_smolvlm(directory):
    """Copies the tiny random SmolVLM: an image is up to five tiles of 16 pixels, 4 tokens each."""
    names = ["<pad>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>"]
    names += ["<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))]
    named = dict(enumerate(names)) | {60: "<image>"}
    checkpoints.smolvlm(directory, side=16, longest=32)
    return _filled(directory, "smolvlm", named, "<end_of_utterance>", SMOLVLM_TEMPLATE)


def _filled(directory, name, named, end, template):
    """Adds a model's files, and a tokenizer with a token for each character."""

    from transformers import PreTrainedTokenizerFast

    for file in ("config.json", "model.safetensors"):
        shutil.copy(MODELS / name / file, directory)
    vocabulary = {text: number for number, text in named.items()}
    free = (number for number in range(60) if number not in named)
    vocabulary |= {text: next(free) for text in _CHARACTERS}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(named.values()))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token=end, chat_template=template
    )
    tokenizer.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": vocabulary[end]}))
    return str(directory)
