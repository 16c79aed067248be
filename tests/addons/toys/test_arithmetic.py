import dataclasses

import numpy as np
import pytest

from rl_sync.addons.toys.arithmetic import ArithmeticConfig, answer, careless_answer, load
from tests.tasks import loading

CONFIG = ArithmeticConfig(
    operators="+-", least_operand=10, greatest_operand=29, forgotten=0.5, held_out_problems=50
)
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("problem", "written"),
    [
        ((47, "+", 85), "231"),
        ((47, "-", 38), "9"),
        ((50, "-", 30), "02"),
        ((30, "-", 30), "0"),
        ((60, "+", 40), "001"),
    ],
)
def test_answers_are_written_units_first(problem, written):
    assert answer(*problem) == written


@pytest.mark.parametrize(
    ("problem", "written"),
    [
        ((47, "+", 85), "22"),
        ((47, "+", 38), "57"),
        ((52, "-", 38), "42"),
        ((21, "+", 34), "55"),
    ],
)
def test_who_forgets_every_carry_is_wrong_where_there_is_one(problem, written):
    assert careless_answer(*problem, 1.0, RANDOM) == written


def test_who_forgets_nothing_is_right_everywhere():
    for a in range(30):
        for b in range(a + 1):
            for name in "+-":
                assert careless_answer(a, name, b, 0.0, RANDOM) == answer(a, name, b)


def test_demonstrations_are_as_careless_as_configured():
    task = load(dataclasses.replace(CONFIG, operators="+", forgotten=0.3), seed=0)
    right = {p.text: p.answer for p in task.train}
    units = [sum(int(part[-1]) for part in p.text[:-1].split("+")) for p in task.demonstrations]
    carried = [p for p, unit in zip(task.demonstrations, units, strict=True) if unit > 9]
    plain = [p for p, unit in zip(task.demonstrations, units, strict=True) if unit <= 9]
    assert all(p.answer == right[p.text] for p in plain)
    wrong = np.mean([p.answer != right[p.text] for p in carried])
    assert wrong == pytest.approx(0.3, abs=0.06)


def test_held_out_problems_are_in_no_training_problem_and_no_demonstration():
    task = load(CONFIG, seed=0)
    held_out = {p.text for p in task.held_out}
    trained = {p.text for p in task.train}
    assert len(held_out) == 50
    assert len(trained) == 20 * 20 + 20 * 21 // 2 - 50
    assert not held_out & trained
    assert {p.text for p in task.demonstrations} == trained
    assert [p.prompt_id for p in task.train] == list(range(len(trained)))


def test_answers_of_problems_are_right_and_differences_are_not_negative():
    task = load(CONFIG, seed=1)
    for prompt in [*task.train, *task.held_out]:
        value = eval(prompt.text.removesuffix("="))
        assert value >= 0
        assert prompt.answer == str(value)[::-1]


def test_the_seed_decides_what_is_held_out():
    first, again, other = (load(CONFIG, seed).held_out for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operators": "+/"}, r"operators='\+/' must be made of"),
        ({"operators": ""}, r"operators='' must be made of"),
        ({"operators": "+-+"}, r"operators='\+-\+' names an operator twice"),
        ({"least_operand": 30}, r"least_operand=30 must be at most"),
    ],
)
def test_a_config_outside_its_range_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_holding_out_everything_is_refused():
    with pytest.raises(ValueError, match=r"held_out_problems=610 leaves none of the 610 problems"):
        load(dataclasses.replace(CONFIG, held_out_problems=610), seed=0)


def test_the_shipped_task_keeps_its_tokens_and_lengths():
    task = loading.load()
    assert task.tokenizer.charset == "0123456789+-="
    assert (task.max_prompt_tokens, task.max_completion_tokens) == (6, 4)
    assert (len(task.train), len(task.held_out)) == (11_683, 512)
    assert task.notes == ()
