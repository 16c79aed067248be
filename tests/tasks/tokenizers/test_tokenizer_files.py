"""Other libraries read the character tokenizer's files and tokenize alike."""

import json

import pytest
from tokenizers import Tokenizer

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.tasks.tokenizers.tokenizer_files import token_ids, tokenizer_files

TOKENIZER = CharacterTokenizer("0123456789+-= \nä<|>end")
TEXT = "12 + ä\n= 7 <e>"


def test_the_same_ids_come_out_for_a_text_and_the_text_for_the_ids(tmp_path):
    from transformers import AutoTokenizer

    for name, text in tokenizer_files(TOKENIZER).items():
        (tmp_path / name).write_text(text)
    same = AutoTokenizer.from_pretrained(tmp_path)
    ids = TOKENIZER.encode(TEXT)
    assert same(TEXT)["input_ids"] == ids
    assert same.decode([*ids, same.eos_token_id], skip_special_tokens=True) == TEXT
    assert (same.eos_token_id, same.pad_token_id) == (TOKENIZER.eos_id, TOKENIZER.pad_id)
    assert len(same) == TOKENIZER.vocab_size


def test_an_unknown_character_is_an_error_there_too():
    same = Tokenizer.from_str(tokenizer_files(TOKENIZER)["tokenizer.json"])
    with pytest.raises(Exception, match=r"Missing .* token"):
        same.encode("1?")


def test_a_policy_of_characters_says_which_text_it_cannot_encode(tmp_path):
    for name, text in tokenizer_files(TOKENIZER).items():
        (tmp_path / name).write_text(text)
    same = pretrained.load(pretrained.TokenizerConfig(path=str(tmp_path)))
    for encode in (same.encode, same.encode_prompt, same.encode_literally):
        assert encode("12") == TOKENIZER.encode("12")
        with pytest.raises(ValueError, match=r"no token for a part of '1\?': .*Missing"):
            encode("1?")
    assert not Bridge(same).can_say("(reply 1)")
    assert Bridge(same).can_say("12")


def test_token_ids_are_those_that_end_and_pad():
    assert json.loads(json.dumps(token_ids(TOKENIZER))) == {
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def test_the_files_of_a_tokenizer_with_images_have_a_special_token_for_them(tmp_path):
    from transformers import AutoTokenizer

    seeing = CharacterTokenizer("ab", shows_images=True)
    for name, content in tokenizer_files(seeing).items():
        (tmp_path / name).write_text(content, "utf-8")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode("a<|image|>b") == [2, seeing.image_id(), 3]
    assert len(theirs) == seeing.vocab_size
    assert "<|image|>" not in tokenizer_files(CharacterTokenizer("ab"))["tokenizer.json"]
