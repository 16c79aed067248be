"""Evaluations by explorers in whole runs, beside their rollouts."""

from __future__ import annotations

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from tests.runs.conftest import flags
from tests.runs.test_self_play import GAME

EVERY = "--config.evaluation.every_steps=4"


def evaluated(run, role):
    """Returns the spans of the evaluations of a role, between the first and the last step."""
    return [
        span
        for span in run.spans(SpanKind.EVALUATION)
        if span.role.startswith(role) and span.attributes.get("step") not in (None, 0, 12)
    ]


def check(run):
    """Checks that each version that was asked for has been evaluated, once and wholly."""
    lines = read_metrics(run.workdir, "evaluation")
    assert sorted(line["step"] for line in lines) == [0, 4, 8, 12]
    assert all(line["problems"] == 32 for line in lines)
    assert "No evaluation" not in run.output


@pytest.mark.gate
def test_an_explorer_evaluates_the_versions_asked_for_while_it_rolls_out(memory_runs):
    run = memory_runs(*flags("asynchronous"), EVERY)
    check(run)
    made = evaluated(run, "explorer")
    assert [span.attributes["version"] for span in made] == [4, 8]
    beside = [
        span
        for span in run.spans(SpanKind.ROLLOUT)
        if any(one.start_secs < span.start_secs < one.end_secs for one in made)
    ]
    assert beside, "no rollout began during an evaluation"
    lost = sum(span.attributes.get("evaluating_secs", 0) for span in run.spans(SpanKind.ROLLOUT))
    told = [
        line["rollouts_lost_secs"]
        for line in read_metrics(run.workdir, "evaluation")
        if "rollouts_lost_secs" in line
    ]
    assert len(told) == 2
    assert sum(told) == pytest.approx(lost, abs=0.01)
    assert "evaluations by explorers: rollouts stood still for" in run.output


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mode", "more", "role"),
    [
        ("multi_explorer", (), "explorer"),
        ("asynchronous", ("--config.rollout.streaming=false",), "explorer"),
        ("asynchronous", ("--config.evaluation.by=trainer",), "trainer"),
        ("synchronous", (), "trainer"),
        ("one_step_off_policy", (), "trainer"),
    ],
)
def test_in_each_mode_the_versions_asked_for_are_evaluated(memory_runs, mode, more, role):
    run = memory_runs(*flags(mode), EVERY, *more)
    check(run)
    made = evaluated(run, role)
    assert sorted(span.attributes["step"] for span in made) == [4, 8]


@pytest.mark.gate
def test_an_evaluation_that_takes_long_lets_the_next_one_wait_or_be_left_out(memory_runs):
    slow = ("--config.evaluation.every_steps=1", "--config.evaluation.samples=8")
    run = memory_runs(*flags("asynchronous"), *slow, "--config.evaluation.waiting=0")
    lines = read_metrics(run.workdir, "evaluation")
    left_out = run.output.count("\nNo evaluation after step ")
    assert len(lines) + left_out == 13
    assert {0, 12} <= {line["step"] for line in lines}


@pytest.mark.nightly
def test_episodes_of_an_evaluation_are_played_beside_those_of_rollouts(memory_runs):
    every = ("--config.evaluation.every_steps=2", "--config.trainer.steps=6")
    run = memory_runs(*flags("asynchronous"), *GAME[1:], *every)
    lines = read_metrics(run.workdir, "evaluation")
    assert sorted(line["step"] for line in lines) == [0, 2, 4, 6]
    assert all(line["problems"] == 8 for line in lines)
    made = [span for span in run.spans(SpanKind.EVALUATION) if span.role == "explorer1"]
    assert [span.attributes["version"] for span in made] == [2, 4]
