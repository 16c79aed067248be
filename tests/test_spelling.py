"""Names that a mistyped word probably means."""

import pytest

from rl_sync.schedule import MODES
from rl_sync.spelling import hint, nearest, require_one_of

DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize(
    ("word", "names", "meant"),
    [
        ("async", MODES, "asynchronous"),
        ("sync", MODES, "synchronous"),
        ("one-step", MODES, "one_step_off_policy"),
        ("asinchronous", MODES, "asynchronous"),
        ("ASYNCHRONOUS", MODES, "asynchronous"),
        ("bf16", DTYPES, "bfloat16"),
        ("lr", ("warmup_updates", "learning_rate", "b1"), "learning_rate"),
        ("max_prompt_length", ("max_prompt_tokens", "too_long"), "max_prompt_tokens"),
        ("prompt_tokens", ("max_prompt_tokens", "too_long"), "max_prompt_tokens"),
        ("lerning_rat", ("warmup_updates", "learning_rate"), "learning_rate"),
        ("zebra", MODES, None),
        ("", MODES, None),
        ("x", (), None),
    ],
)
def test_a_word_stands_for_the_name_that_it_is_like(word, names, meant):
    assert nearest(word, names) == meant


def test_a_message_ends_in_the_nearest_name_or_in_a_full_stop():
    assert hint("async", MODES) == "; did you mean 'asynchronous'?"
    assert hint("zebra", MODES) == "."


def test_a_word_that_is_not_allowed_is_named_with_all_that_are():
    require_one_of("pace", "slow", ("slow", "fast"))
    with pytest.raises(ValueError) as error:
        require_one_of("pace", "slwo", ("slow", "fast"))
    assert str(error.value) == "pace='slwo' is not one of slow, fast; did you mean 'slow'?"


def test_of_a_file_it_is_said_how_to_name_what_is_in_it():
    with pytest.raises(ValueError, match=r"name what is in the file: my/slow\.py:NAME\.$"):
        require_one_of("pace", "my/slow.py", ("slow", "fast"))
