import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.special_tokens import Shield, SpecialTokens
from tests.tasks.loading import TOKENIZER


def pieces(added=(), **special):
    """A tokenizer whose model has the name of its end of text as a piece."""

    from transformers import PreTrainedTokenizerFast

    vocabulary = [("<unk>", 0.0), ("</s>", -1.0), *((c, -5.0) for c in "</s>ab ")]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, **special), *added])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def test_the_names_are_those_of_special_tokens_longer_ones_first():
    from transformers import PreTrainedTokenizerFast

    backend = PreTrainedTokenizerFast.from_pretrained(TOKENIZER)
    names = SpecialTokens(backend).names
    assert set(names) == set(backend.all_special_tokens)
    assert list(names) == sorted(names, key=lambda name: (-len(name), name))


def test_a_name_is_encoded_as_its_characters():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    (name, *_) = (n for n in tokenizer.special.names if n != tokenizer.backend.unk_token)
    special = tokenizer.backend.convert_tokens_to_ids(name)
    assert tokenizer.encode(f"a{name}") == [*tokenizer.encode("a"), special]
    ids = tokenizer.encode_literally(f"a{name}")
    assert special not in ids
    assert ids[:1] == tokenizer.encode("a")
    assert tokenizer.encode(f"a{name}")[-1] == special, "other texts are encoded as before"


def test_a_name_merges_as_other_text_does():
    from transformers import PreTrainedTokenizerFast

    vocabulary = [("<unk>", 0.0), ("<x", -1.0), *((c, -5.0) for c in "<x>")]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.add_special_tokens([AddedToken("<x>", special=True)])
    backend = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<x>")
    ids = SpecialTokens(backend).encode_as_text("<x>")
    assert backend.convert_ids_to_tokens(ids) == ["<x", ">"]


def test_encoding_names_as_text_leaves_the_backend_as_it_is():
    backend = pieces()
    SpecialTokens(backend).encode_as_text("a")
    assert backend.backend_tokenizer.encode_special_tokens is False


def test_a_name_that_is_a_piece_of_the_model_is_cut_in_two():
    backend = pieces()
    end = backend.eos_token_id
    ids = SpecialTokens(backend).encode_as_text("a</s>b</s></s>")
    assert end not in ids
    assert "".join(backend.convert_ids_to_tokens(ids)) == "a</s>b</s></s>"


@pytest.mark.parametrize(
    ("strips", "matched"),
    [({}, "</s>"), ({"lstrip": True}, "  </s>"), ({"rstrip": True}, "</s>\n ")],
)
def test_the_pattern_takes_the_white_space_that_the_token_swallows(strips, matched):
    pattern = SpecialTokens(pieces(**strips)).pattern
    assert pattern.search("a  </s>\n b")[0] == matched


def test_a_text_that_begins_a_sequence_has_the_tokenizers_beginning_and_not_its_end(tmp_path):
    backend = pieces(added=[AddedToken("<s>", special=True)])
    around = [(name, backend.convert_tokens_to_ids(name)) for name in ("<s>", "</s>")]
    processor = processors.TemplateProcessing("<s> $A </s>", None, around)
    backend.backend_tokenizer.post_processor = processor
    backend.save_pretrained(tmp_path)
    tokenizer = pretrained.load(TokenizerConfig(str(tmp_path), "no", None))
    start, end = (i for _, i in around)
    ids = tokenizer.encode_literally("ab</s>", begins=True)
    assert ids[0] == start
    assert end not in ids
    assert ids[1:] == tokenizer.encode_literally("ab</s>")
    assert tokenizer.encode_literally("ab", begins=True) == tokenizer.encode_prompt("ab")
    assert tokenizer.encode_literally("", begins=True) == [start]


def test_decoding_all_keeps_special_tokens_and_goes_on_behind_an_end():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    end = tokenizer.eos_id
    ids = [*tokenizer.encode("hi"), end, *tokenizer.encode("ho"), tokenizer.vocab_size]
    name = tokenizer.backend.convert_ids_to_tokens(end)
    assert tokenizer.decode_all(ids) == f"hi{name}ho\ufffd"
    assert tokenizer.decode(ids) == "hi"


NAMES = ("<|im_end|>", "<s>")
SHIELD = Shield(NAMES)
PIECES = st.sampled_from([*NAMES, "\U000f0000", "\U000f0001", "1", "0", "<", "text"])
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(TEXTS)
@example("\U000f00001\U000f0001")  # A text that looks like the mark of a name.
def test_a_covered_text_has_no_name_and_uncovers_to_itself(text):
    covered = SHIELD.cover(text)
    assert not any(name in covered for name in NAMES)
    assert SHIELD.uncover(covered) == text


@given(TEXTS)
def test_only_texts_with_names_are_covered(text):
    has_name = any(name in text for name in (*NAMES, "\U000f0000"))
    assert SHIELD.covers(SHIELD.cover(text)) == has_name
    assert has_name or SHIELD.cover(text) == text


def test_all_texts_of_a_json_value_are_covered():
    value = {"<s>": ["a<s>", 1, None, {"b": "<|im_end|>"}]}
    covered = SHIELD.cover(value)
    mark, end = SHIELD.cover("<s>"), SHIELD.cover("<|im_end|>")
    assert covered == {mark: [f"a{mark}", 1, None, {"b": end}]}
