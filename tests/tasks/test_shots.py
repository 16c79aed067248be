"""Few-shot prompts: which solved problems stand in front of which question."""

import dataclasses
import re

import pytest

from rl_sync.configs import base
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.shots import with_shots
from rl_sync.types import Preference, Prompt
from tests.settings.changed import config_with, settings_with
from tests.tasks.loading import TOKENIZER, load


def _prompts(first, count, row=None):
    return [Prompt(i, f"{first + i}+1?", str(first + i + 1), row) for i in range(count)]


def _problems(**fields):
    train = _prompts(0, 20)
    problems = Problems(
        train=train,
        held_out=_prompts(100, 3),
        demonstrations=[prompt._replace(answer="because") for prompt in train],
        preferences=[Preference(prompt, "yes", "no") for prompt in train],
    )
    return dataclasses.replace(problems, **fields)


def _shown(prompt):
    """The questions in front of a prompt's own, with their answers."""
    *shown, asked = prompt.text.split("Question: ")[1:]
    assert asked.endswith("\nAnswer:")
    return [tuple(one.strip().split("\nAnswer: ")) for one in shown]


def test_every_question_follows_the_same_solved_problems_which_are_trained_on_no_more():
    few = with_shots(_problems(), 3, seed=0)
    (shown,) = {tuple(_shown(prompt)) for prompt in (*few.train, *few.held_out)}
    assert len(set(shown)) == 3
    assert set(shown) < {(prompt.text, prompt.answer) for prompt in _problems().train}
    assert (len(few.train), len(few.held_out)) == (17, 3)
    asked = {prompt.text.split("Question: ")[-1].partition("\n")[0] for prompt in few.train}
    assert not asked & {question for question, _ in shown}
    assert [prompt.prompt_id for prompt in few.train] == list(range(17))
    assert few.held_out[0].answer == "101"


def test_demonstrations_and_pairs_follow_their_problem():
    few = with_shots(_problems(), 2, seed=0)
    assert [one.text for one in few.demonstrations] == [one.text for one in few.train]
    assert {one.answer for one in few.demonstrations} == {"because"}
    assert [one.prompt.text for one in few.preferences] == [one.text for one in few.train]


def test_a_question_follows_problems_of_its_category():
    rows = [*_prompts(0, 8, {"category": "a"}), *_prompts(50, 8, {"category": "b"})]
    train = [prompt._replace(prompt_id=i) for i, prompt in enumerate(rows)]
    few = with_shots(_problems(train=train, held_out=train[8:10]), 2, seed=0)
    for prompt in (*few.train, *few.held_out):
        numbers = [int(question.partition("+")[0]) for question, _ in _shown(prompt)]
        assert all((number >= 50) == (prompt.row["category"] == "b") for number in numbers)


def test_the_seed_draws_them():
    drawn = {with_shots(_problems(), 2, seed=seed).held_out[0].text for seed in range(5)}
    assert len(drawn) > 1
    assert with_shots(_problems(), 2, 7) == with_shots(_problems(), 2, 7)
    assert with_shots(_problems(), 0, 7) == _problems()


def test_a_template_says_how_a_problem_and_its_answer_are_written():
    few = with_shots(_problems(), 2, 0, "Q {{{question}}}: {answer};\n")
    *shown, asked = few.held_out[0].text.split("\n")
    assert asked == "Q {100+1?}:"
    solved = {f"Q {{{prompt.text}}}: {prompt.answer};" for prompt in _problems().train}
    assert len(shown) == 2
    assert set(shown) < solved


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{answer} {question}", "question} once, and after it {answer}"),
        ("{question}", "question} once, and after it {answer}"),
        ("{question} {answer} {answer}", "a literal brace is doubled"),
        ("{question:>9} {answer}", "question} once, and after it {answer}"),
        ("{question} {answer", "is not a format string: expected '}'"),
    ],
)
def test_a_template_without_question_and_answer_is_refused(template, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        settings_with(task__shot_template=template)


def test_too_few_solved_problems_are_refused():
    with pytest.raises(ValueError, match=r"shots=20 takes 20 of the 20 training problems that"):
        with_shots(_problems(), 20, seed=0)
    other = [Prompt(0, "?", "!", {"category": "maps"})]
    with pytest.raises(ValueError, match=r"of the 0 training problems of the category 'maps' that"):
        with_shots(_problems(held_out=other), 1, seed=0)


@pytest.mark.nightly
def test_a_config_asks_for_them_and_prompts_are_then_no_chat():
    config = config_with(base.get_config(), task__shots=2)
    assert read_settings(config).task.shots == 2
    assert load(tokenizer=TOKENIZER).tokenizer.chat
    task = load(tokenizer=TOKENIZER, shots=2)
    assert not task.tokenizer.chat
    assert _shown(task.train[0]) == _shown(task.held_out[0])
