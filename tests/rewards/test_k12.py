"""The reward for school questions: every example of its page, inferred kinds, and refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.k12 import KINDS, SchoolAnswer, kind_of
from rl_sync.rewards.school import quantity

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rewards-k12.md").read_text()
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
CASES = [
    (example["row"], text, score)
    for example in EXAMPLES
    for text, score in example["completions"].items()
]
REPLIES = [
    (float(score), json.loads(row), reply.replace("⏎", "\n"))
    for line in (Path(__file__).parent / "data" / "k12_replies.tsv").read_text().splitlines()[1:]
    for score, row, reply in [line.split("\t")]
]
REWARD = SchoolAnswer()


def test_the_page_has_examples_of_every_kind():
    assert {kind_of(example["row"]) for example in EXAMPLES} == set(KINDS)
    for kind in KINDS:
        assert f"\n## `{kind}`\n" in PAGE
    assert len(CASES) > 60


def test_the_examples_of_the_page_hold(subtests):
    for row, text, score in CASES:
        with subtests.test(f"{row}: {text}"):
            REWARD.check(row)
            judged = REWARD(row, Completion(text))
            assert judged.score == pytest.approx(score), judged.why
            assert judged.why


def test_answers_in_replies_are_found_and_marked_as_the_table_says(subtests):
    assert len(REPLIES) > 100
    for score, row, reply in REPLIES:
        with subtests.test(f"{row}: {reply}"):
            judged = REWARD(row, Completion(reply))
            assert judged.score == score, judged.why


def test_without_part_marks_an_answer_is_right_or_wrong():
    row = {"kind": "blanks", "answer": ["a", "b"]}
    assert REWARD(row, Completion("a, c")).score == 0.0
    assert SchoolAnswer(partial=True)(row, Completion("a, c")).score == 0.5
    assert SchoolAnswer(partial=True)(row | {"partial": False}, Completion("a, c")).score == 0.0


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"answer": "B", "choices": ["x", "y"]}, "choice"),
        ({"answer": False}, "true_false"),
        ({"answer": "True"}, "true_false"),
        ({"answer": {"1": "B"}}, "match"),
        ({"answer": ["a", "b"]}, "blanks"),
        ({"answer": 7}, "number"),
        ({"answer": "7 kg"}, "number"),
        ({"answer": "gravity"}, "text"),
        ({"answer": "7", "kind": "text"}, "text"),
    ],
)
def test_the_kind_of_a_row_is_inferred(row, kind):
    assert kind_of(row) == kind


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"kind": "chioce", "answer": "A"}, "did you mean 'choice'"),
        ({"kind": "choice", "answer": "A"}, "choices"),
        ({"choices": ["x"], "answer": "A"}, "choices"),
        ({"choices": ["x", "y"], "answer": "C"}, "answer"),
        ({"choices": ["x", "y"], "answer": 2}, "answer"),
        ({"choices": ["x", "y"], "answer": []}, "answer"),
        ({"choices": ["x", "y"]}, "answer"),
        ({"kind": "true_false", "answer": "maybe"}, "answer"),
        ({"kind": "blanks", "answer": []}, "answer"),
        ({"kind": "blanks", "answer": ["a", ""]}, "answer"),
        ({"kind": "number", "answer": "many"}, "answer"),
        ({"kind": "number", "answer": "5 blorps^2"}, "pint lacks"),
        ({"kind": "number", "answer": 5, "tolerance": -1}, "tolerance"),
        ({"kind": "number", "answer": 5, "tolerance": "1%"}, "tolerance"),
        ({"kind": "number", "answer": 5, "unit_required": True}, "unit_required"),
        ({"kind": "number", "answer": "5 kg", "unit": "m"}, "unit"),
        ({"kind": "order", "answer": ["a"]}, "answer"),
        ({"kind": "order", "answer": ["a", "A"]}, "answer"),
        ({"kind": "match", "answer": ["a"]}, "answer"),
        ({"kind": "match", "answer": {"a": None}}, "answer"),
        ({"kind": "text", "answer": " "}, "answer"),
        ({"kind": "text", "answer": "x", "threshold": 0}, "threshold"),
        ({"kind": "text", "answer": "x", "partial": 1}, "partial"),
        ({}, "answer"),
    ],
)
def test_malformed_rows_are_refused_by_field_and_their_completions_are_unknown(row, names):
    with pytest.raises(ValueError, match=names):
        REWARD.check(row)
    assert REWARD(row, Completion("A")).score is None


def test_an_answer_in_lines_is_read_up_to_a_blank_line():
    row = {"kind": "order", "answer": ["one", "two"]}
    text = "Let me think.\n\nAnswer:\n1. one\n2. two\n\nI hope that helps."
    assert REWARD(row, Completion(text)).score == 1.0
    assert REWARD(row, Completion("Let me think.\n\none\ntwo")).score == 1.0


def test_a_truncated_answer_counts_only_where_its_end_is_marked():
    row = {"kind": "text", "answer": "gravity"}
    assert REWARD(row, Completion("gravity", truncated=True)).score == 0.0
    assert REWARD(row, Completion(r"\boxed{gravity} is", truncated=True)).score == 1.0


def test_units_that_are_no_units_cost_nothing():
    row = {"kind": "number", "answer": "5 kg"}
    for text in ("5 m^9^9^9", "5 " + "m*" * 500, "5 kg**99999999", "5 __import__('os')", "5 ^"):
        assert REWARD(row, Completion(text)).score == 0.0


def test_without_pint_equal_units_are_compared_and_others_are_unknown(monkeypatch):
    row = {"kind": "number", "answer": "5 kg"}
    question = KINDS["number"].of(row)
    monkeypatch.setattr(quantity, "is_installed", lambda: False)
    assert question.mark("5 kilograms").share == 1.0
    with pytest.raises(quantity.UnjudgeableError, match=r"rl_sync\[k12\]"):
        question.mark("5000 g")
    with pytest.raises(ValueError, match=r"rl_sync\[k12\]"):
        REWARD.check(row)
    REWARD.check({"kind": "number", "answer": "5 apples"})


def test_unknown_strategies_are_refused():
    with pytest.raises(ValueError, match="extract="):
        SchoolAnswer(extract="lastline")


def test_importing_the_reward_imports_neither_jax_nor_pint():
    script = (
        "import sys, rl_sync.rewards.k12 as m; m.SchoolAnswer();"
        " print({'jax', 'sympy', 'pint', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
