import pytest

from rl_sync.tasks.lengths import LengthLimits, fit, truncated
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Prompt
from tests.tasks.loading import TOKENIZER

CHARACTERS = CharacterTokenizer("abcdefgh")
PROBLEMS = Problems(
    train=[Prompt(0, "abcdef", "a"), Prompt(1, "abc", "bb"), Prompt(2, "ab", "c")],
    held_out=[Prompt(0, "a", "a"), Prompt(1, "efgh", "a")],
    demonstrations=[Prompt(0, "abcdef", "h"), Prompt(2, "ab", "cc"), Prompt(1, "abc", "ccc")],
    reward="exact",
    notes=["Said before."],
)


def _fit(prompt=None, completion=None, too_long="drop", problems=PROBLEMS):
    return fit(problems, PromptEncoder(CHARACTERS), LengthLimits(prompt, completion, too_long))


def test_without_limits_the_data_decide():
    task = _fit()
    assert (task.max_prompt_tokens, task.max_completion_tokens) == (6, 4)
    assert [*task.notes] == ["Said before."]
    assert task.train == PROBLEMS.train


def test_rows_have_room_for_the_longest_prompt_and_the_longest_completion_that_may_be():
    task = _fit(10, 20)
    assert (task.max_prompt_tokens, task.max_completion_tokens) == (6, 20)
    assert task.row_tokens == 26
    assert [*task.notes] == ["Said before."]


def test_prompts_that_are_too_long_are_dropped_and_counted():
    task = _fit(prompt=5)
    assert task.max_prompt_tokens == 4  # That of a held-out problem.
    task = _fit(prompt=3)
    assert task.max_prompt_tokens == 3
    assert task.train == [Prompt(0, "abc", "bb"), Prompt(1, "ab", "c")]
    assert task.held_out == [Prompt(0, "a", "a")]
    assert task.demonstrations == [Prompt(1, "ab", "cc"), Prompt(0, "abc", "ccc")]
    assert [*task.notes] == [
        "Said before.",
        "1 of 3 training problems are dropped: their prompts are longer than"
        " task.max_prompt_tokens=3.",
        "1 of 2 held-out problems are dropped: their prompts are longer than"
        " task.max_prompt_tokens=3.",
    ]


def test_prompts_that_are_too_long_are_cut_from_the_left_and_counted():
    task = _fit(prompt=3, too_long="truncate")
    assert [p.text for p in task.train] == ["def", "abc", "ab"]
    assert [p.text for p in task.held_out] == ["a", "fgh"]
    assert task.max_prompt_tokens == 3
    assert task.demonstrations[0] == Prompt(0, "def", "h")
    assert "1 of 3 training problems are cut from the left" in task.notes[1]


def test_demonstrations_that_are_too_long_are_left_out_and_counted():
    task = _fit(completion=3)
    assert [p.answer for p in task.demonstrations] == ["h", "cc"]
    assert len(task.train) == 3
    assert task.notes[1].startswith("1 of 3 demonstrations are left out")


def test_answers_need_not_fit_where_only_the_reward_reads_them():
    problems = Problems(
        train=[Prompt(0, "a", "not even characters of the charset")],
        held_out=[Prompt(0, "a", "b" * 99)],
        demonstrations=[],
        reward="exact",
    )
    assert _fit(completion=2, problems=problems).max_completion_tokens == 2


def test_limits_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match=r"max_prompt_tokens=1 leaves none of the 3 training"):
        _fit(prompt=1)


def test_a_cut_prompt_keeps_its_chat_template_whole():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER), "auto", "Be brief."))
    around = len(tokenizer.encode_prompt(""))
    text = truncated("0123456789", tokenizer, around + 4)
    assert text == "6789"
    assert len(tokenizer.encode_prompt(text)) == around + 4


def test_a_template_that_leaves_no_room_is_named():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    around = len(tokenizer.encode_prompt(""))
    with pytest.raises(ValueError, match=rf"={around} has no room .* alone take {around}\."):
        truncated("0123456789", tokenizer, around)
