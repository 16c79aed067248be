"""Runs whose environments fail: in processes of their own, which cost their own episodes."""

import collections
import json

from tests.runs.conftest import EMBEDDED, launch
from tests.runs.living import ended, processes_of

FAULTY = (
    EMBEDDED,
    "--config.environment.max_tokens=24",
    "--config.environment.limit_secs=2",
    "--config.environment.workers=6",
    "--config.task.max_completion_tokens=3",
    "--config.warm_up.steps=0",
    "--config.trainer.steps=4",
    "--config.trainer.groups_per_step=8",
    "--config.evaluation.problems=4",
)


def test_an_environment_that_fails_costs_its_own_episodes(runs):
    run = runs.get(
        *FAULTY,
        "--config.environment.name=tests/runs/faulty.py:Faulty",
        "--config.reward.unjudged_limit=1",
    )
    assert [len(step["groups"]) for step in run.consumed] == [8] * 4
    whys = collections.defaultdict(set)
    judged = [json.loads(line) for line in run.workdir.judgements.read_text().splitlines()]
    for one in judged:
        assert (one["score"] is None) == bool(one["episode"]["why"]), one
        if one["score"] is None:
            assert one["episode"]["turns"] == 1
            assert one["episode"]["rewards"] == {}
            whys[one["episode"]["reason"]].add(one["why"].splitlines()[-1])
    assert set(whys) == {"environment failure", "time-out"}
    failures = " ".join(whys["environment failure"])
    assert "ArithmeticError: the board is broken" in failures
    assert "exit code 9" in failures
    assert any("longer than 2 s" in why for why in whys["time-out"])
    assert any(one["score"] == 1.0 for one in judged)
    assert processes_of(run.workdir) == {}


def test_a_run_whose_environments_mostly_fail_stops_with_a_traceback(tmp_path):
    process = launch(
        *FAULTY,
        "--config.environment.name=tests/runs/faulty.py:Faulty(always=True)",
        "--config.evaluation.problems=32",
        workdir=tmp_path / "run",
    )
    output = ended(process)
    assert process.returncode == 1
    assert "could not be judged, more than reward.unjudged_limit=0.1 allows" in output
    assert "ArithmeticError: the board is broken" in output
    assert "faulty.py" in output


def test_an_environment_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    for name, message in {
        "tests/runs/faulty.py:Fault": "did you mean 'Faulty'",
        "tests/runs/faulty.py:Faulty(alway=True)": "has no option 'alway'",
        "tests/runs/nowhere.py:Faulty": "nowhere.py",
        "gess": "did you mean 'guess'",
    }.items():
        process = launch(*FAULTY, f"--config.environment.name={name}", workdir=tmp_path / "refused")
        output = ended(process)
        assert process.returncode == 2, output
        assert message in output
        assert "Traceback" not in output
