"""`python -m launcher eval`: a run's snapshot or a checkpoint, a table and a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rl_sync.checkpoints.best_snapshot import write_best
from rl_sync.launcher.commands.evaluate import table
from rl_sync.messages.run_result import Best
from rl_sync.records import accuracy
from rl_sync.roles.evaluation.standalone_evaluation import Evaluation
from rl_sync.roles.policy_export import export
from rl_sync.roles.saved_policy import step_named
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.launcher.command import said_here
from tests.roles.test_policy_export import run_in


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with snapshots of the steps 1 and 2, of which the first is the best."""
    workdir = tmp_path_factory.mktemp("eval") / "run"
    run_in(workdir)
    write_best(Workdir(workdir), Best(1, "accuracy", 0.5))
    return workdir


def evaluated(capsys, out, *arguments):
    said = said_here(capsys, "eval", f"--out={out}", *arguments)
    assert said.status == 0, said.err
    return said.out, json.loads(out.read_text())


def texts(record):
    return [one["completion"] for one in record["completions"]]


@pytest.mark.gate
def test_a_snapshot_is_evaluated_with_the_config_of_its_run_and_changes_to_it(
    run, capsys, tmp_path
):
    changes = ("--config.evaluation.samples=4", "--config.evaluation.problems=8")
    printed, record = evaluated(capsys, tmp_path / "out.json", f"--workdir={run}", *changes)
    assert f"trainer step 2 of {run}: 8 held-out problems, 4 completions each" in printed
    for metric in ("accuracy", "mean@4", "majority@4", "pass@1", "pass@2", "pass@4"):
        assert f"\n{metric} " in printed
        assert f"{metric}_low" in record["metrics"]
    asked = [(one["problem"], one["sample"]) for one in record["completions"]]
    assert asked == [(problem, sample) for problem in range(8) for sample in range(4)]
    assert len(set(texts(record))) > 8, "samples are drawn"
    _, again = evaluated(capsys, tmp_path / "again.json", f"--workdir={run}", *changes)
    assert texts(again) == texts(record)
    assert all(one["why"] for one in record["completions"])


@pytest.mark.gate
def test_the_best_snapshot_is_evaluated_and_exported_by_its_name(run, capsys, tmp_path):
    _, best = evaluated(capsys, tmp_path / "best.json", f"--workdir={run}", "--step=best")
    _, first = evaluated(capsys, tmp_path / "first.json", f"--workdir={run}", "--step=1")
    _, newest = evaluated(capsys, tmp_path / "newest.json", f"--workdir={run}")
    assert best["policy"] == f"trainer step 1 of {run}"
    assert texts(best) == texts(first) != texts(newest)
    assert export(run, tmp_path / "exported", None, "best") == 1


@pytest.mark.gate
def test_a_checkpoint_gives_what_the_snapshot_gives_that_it_was_made_from(run, capsys, tmp_path):
    _, snapshot = evaluated(capsys, tmp_path / "snapshot.json", f"--workdir={run}")
    export(run, tmp_path / "exported", None)
    _, checkpoint = evaluated(
        capsys,
        tmp_path / "checkpoint.json",
        "--config=tests/runs/tiny.py",
        f"--model={tmp_path / 'exported'}",
    )
    assert texts(checkpoint) == texts(snapshot)
    assert np.mean([len(text) for text in texts(snapshot)]) > 0


def test_mean_scores_are_printed_beside_the_accuracy_of_each_category():
    problems = [
        accuracy.Problem([accuracy.JudgedAnswer(score == 1, "a", score)], category=kind)
        for kind, score in (("box", 0.25), ("box", 1.0), ("count", 1.0), ("count", 0.0))
    ]
    printed = table(Evaluation("p", accuracy.measure(problems), [], 1.0, 1.0), 1).splitlines()
    assert [" ".join(line.split()) for line in printed if "score" in line] == [
        "mean score 0.562",
        "accuracy of box 50.0% 9.5% to 90.5% 2 problems, mean score 0.625",
        "accuracy of count 50.0% 9.5% to 90.5% 2 problems, mean score 0.500",
    ]
    whole = accuracy.measure([problem for problem in problems if problem.category == "count"])
    assert "score" not in table(Evaluation("p", whole, [], 1.0, 1.0), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "eval needs the problems of a config"),
        (("--model=x",), "eval needs the problems of a config"),
        (("--config=tests/runs/tiny.py",), "give --model=CHECKPOINT, or --workdir=RUN"),
        (("--config=tests/runs/tiny.py", "--step=1"), "--step names a snapshot of a run"),
        (("--config=tests/runs/tiny.py", "--model=x", "--workdir=y"), "are two policies"),
        (("--workdir=/nowhere",), "is not the work directory of a run"),
    ],
)
def test_what_cannot_be_evaluated_is_told_in_one_line(arguments, message, capsys):
    said = said_here(capsys, "eval", *arguments)
    assert said.status == 2
    assert message in said.err
    assert "Traceback" not in said.err


def test_snapshots_that_are_not_there_are_named(run, tmp_path):
    with pytest.raises(ConfigError, match=r"no snapshot of step 7 \(there are \[1, 2\]\)"):
        step_named(run, "7")
    with pytest.raises(ConfigError, match=r"step=last must be a trainer step, or best"):
        step_named(run, "last")
    run_in(tmp_path / "other")
    with pytest.raises(ConfigError, match="has no best snapshot"):
        step_named(tmp_path / "other", "best")
