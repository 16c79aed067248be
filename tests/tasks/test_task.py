import dataclasses

import numpy as np
import pytest

from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Prompt

TASK = Task(
    train=[Prompt(0, "ab", "c"), Prompt(1, "a", "cc")],
    held_out=[Prompt(0, "b", "c")],
    demonstrations=[Prompt(1, "a", "cc")],
    tokenizer=CharacterTokenizer("abc"),
    reward="exact",
    max_prompt_tokens=3,
    max_completion_tokens=3,
)


def test_prompts_are_padded_on_the_right():
    tokens, lengths = TASK.encode_prompts(["ab", "a"])
    np.testing.assert_array_equal(tokens, [[2, 3, 0], [2, 0, 0]])
    np.testing.assert_array_equal(lengths, [2, 1])


def test_demonstrations_teach_the_answer_and_its_end_alone():
    tokens, mask = TASK.encode_demonstrations(TASK.train)
    np.testing.assert_array_equal(tokens, [[2, 3, 4, 1, 0, 0], [2, 4, 4, 1, 0, 0]])
    np.testing.assert_array_equal(mask, [[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]])
    assert TASK.row_tokens == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": []}, "no training problems"),
        ({"max_prompt_tokens": 1}, r"'ab' has 2 tokens.* allows 1 to 1"),
        ({"max_completion_tokens": 2}, r"'a' → 'cc' has 3 tokens.* allows 2"),
        ({"tokenizer": CharacterTokenizer("ab")}, "'c' .* is not in the tokenizer"),
    ],
)
def test_a_task_that_does_not_fit_itself_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TASK, **change)


def test_a_task_says_how_much_there_is_and_what_was_left_out():
    noted = dataclasses.replace(TASK, demonstrations=[], notes=["1 row is dropped."])
    assert noted.describe() == (
        "2 problems to train on, 1 held out; at most 3 tokens a prompt and 3 a completion.\n"
        "- 1 row is dropped."
    )
