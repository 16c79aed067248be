import pytest

from rl_sync.tasks.tokenizers.prompt_messages import asked_tokens
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer, completion_tokens, without_end

TOKENIZER = CharacterTokenizer("ab+=")


def test_padding_is_0_the_end_is_1_and_characters_follow():
    assert (TOKENIZER.pad_id, TOKENIZER.eos_id, TOKENIZER.vocab_size) == (0, 1, 6)
    assert TOKENIZER.encode("b=a") == [3, 5, 2]
    assert TOKENIZER.decode([3, 5, 2]) == "b=a"


def test_decoding_ends_at_the_end_of_sequence_and_shows_padding_inside():
    assert TOKENIZER.decode([2, 1, 3]) == "a"
    assert TOKENIZER.decode([2, 0, 3]) == "a\ufffdb"


def test_a_stop_id_ends_a_completion_and_has_no_text():
    stopping = TOKENIZER.with_stop_ids((5,))
    assert (stopping.eos_ids, stopping.end_ids) == ((1,), (1, 5))
    assert (stopping.decode([2, 3, 5]), stopping.decode_all([2, 3, 5])) == ("ab", "ab=")
    assert without_end(stopping, [2, 5, 5]) == [2, 5]
    assert without_end(stopping, [2, 3]) == [2, 3]


def test_a_character_outside_the_charset_is_named():
    message = r"Character 'x' at 1 of 'axb'.*`charset` of the environment's class"
    with pytest.raises(ValueError, match=message):
        TOKENIZER.encode("axb")


@pytest.mark.parametrize("token", [-1, 6])
def test_an_id_outside_the_vocabulary_is_refused(token):
    with pytest.raises(ValueError, match=f"Token id {token} is outside"):
        TOKENIZER.decode([token])


@pytest.mark.parametrize(("charset", "message"), [("", "at least one"), ("aba", "'a' more than")])
def test_a_charset_that_cannot_be_is_refused(charset, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer(charset)


def test_the_charset_of_texts_is_their_characters_in_order():
    assert CharacterTokenizer.of_texts(["cab", "b a"]).charset == " abc"


def test_the_length_of_a_completion_counts_its_end():
    assert (asked_tokens(TOKENIZER, "a+b"), completion_tokens(TOKENIZER, "a+b")) == (3, 4)


def test_decoding_all_goes_on_behind_an_end_which_has_no_text():
    tokenizer = CharacterTokenizer("ab")
    assert tokenizer.decode_all([2, 1, 3, 0]) == "ab\ufffd"
    assert tokenizer.decode([2, 1, 3, 0]) == "a"
    with pytest.raises(ValueError, match="Token id 9 is outside"):
        tokenizer.decode_all([9])


def test_characters_are_literal_wherever_they_stand():
    tokenizer = CharacterTokenizer("ab")
    assert tokenizer.encode_literally("ab", begins=True) == tokenizer.encode("ab") == [2, 3]
