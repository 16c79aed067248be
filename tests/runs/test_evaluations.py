"""Evaluations during runs of real processes."""

from __future__ import annotations

import pytest

from rl_sync.checkpoints.best_snapshot import read_best
from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from tests.runs.conftest import EMBEDDED, assert_same_bits, flags

SOME = (*flags("synchronous"), EMBEDDED)
EVALUATED = (
    "--config.evaluation.every_steps=3",
    "--config.evaluation.samples=4",
    "--config.checkpoint.best=pass@4",
    "--config.checkpoint.keep=1",
)


@pytest.mark.gate
def test_evaluations_change_no_bit_of_a_run_and_the_best_snapshot_stays(runs):
    plain, run = runs.get(*SOME), runs.get(*SOME, *EVALUATED)
    assert_same_bits(plain, run)
    lines = read_metrics(run.workdir, "evaluation")
    assert [line["step"] for line in lines] == [0, 3, 6, 9, 12]
    assert all(line["pass@1"] <= line["pass@4"] <= line["pass@4_high"] for line in lines)
    greatest = max(lines[1:], key=lambda line: line["pass@4"])
    best = read_best(run.workdir)
    assert (best.step, best.value) == (greatest["step"], greatest["pass@4"])
    kept = {int(path.name[-8:]) for path in run.workdir.snapshots.glob("snapshot_*")}
    assert kept == {best.step, 12}
    assert f"Best snapshot: of step {best.step}, pass@4" in run.output


@pytest.mark.nightly
def test_explorers_at_their_own_pace_evaluate_while_the_trainer_goes_on(runs):
    some = (*flags("asynchronous"), EMBEDDED)
    run = runs.get(*some, "--config.evaluation.every_steps=4", "--config.sft.steps=4")
    spans = run.spans(SpanKind.EVALUATION)
    by_trainer = [span for span in spans if span.role == "trainer"]
    assert {span.attributes.get("step", 0) for span in by_trainer} == {0, 12}
    by_explorer = [span.attributes["version"] for span in spans if span.role == "explorer1"]
    assert by_explorer
    lines = read_metrics(run.workdir, "evaluation")
    assert sorted(line["step"] for line in lines) == sorted([0, *by_explorer, 12])
    assert all(line["problems"] == 32 for line in lines)
    judged = run.judged
    assert sum(one["held_out"] for one in judged) == 32 * (len(lines) + 1), "and one probe"
