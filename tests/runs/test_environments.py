"""Runs whose environments fail: in processes of their own, which cost their own episodes."""

import collections

import pytest

from rl_sync.roles.master.group_admission import EPISODE_FAILED
from tests.runs.conftest import EMBEDDED, launch
from tests.runs.living import ended, processes_of

FAULTY = (
    EMBEDDED,
    "--config.environment.max_tokens=24",
    "--config.environment.limit_secs=2",
    "--config.environment.workers=6",
    "--config.task.max_completion_tokens=3",
    "--config.sft.steps=0",
    "--config.trainer.steps=4",
    "--config.trainer.groups_per_step=8",
    "--config.evaluation.problems=4",
)


@pytest.mark.nightly
def test_an_environment_that_fails_costs_its_own_episodes(runs):
    run = runs.get(
        *FAULTY,
        "--config.environment.name=tests/runs/faulty.py:Faulty",
        "--config.reward.unjudged_limit=1",
    )
    assert [len(step["groups"]) for step in run.consumed] == [8] * 4
    whys = collections.defaultdict(set)
    judged = run.judged
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
    # Pulls are exact, so no prompt is leased again; each episode began twice.
    episodes = failed_episodes(run)
    assert [one["attempt"] for one in episodes] == [0, 1] * (len(episodes) // 2)
    leased = [one for one in judged if not one["held_out"]]
    lost = [one["lease"] for one in leased if one["score"] is None]
    assert sorted(lost) == sorted(one["lease_id"] for one in episodes if one["is_lost"])
    assert run.ledger[-1]["dropped"] == {}
    assert processes_of(run.workdir) == {}


@pytest.mark.nightly
def test_under_latest_pulls_the_prompt_of_a_failed_episode_is_leased_again(runs):
    run = runs.get(
        *FAULTY,
        "--config.sync.mode=asynchronous",
        "--config.environment.name=tests/runs/faulty.py:Faulty(by_seed=True)",
        "--config.environment.max_leases=2",
        "--config.reward.unjudged_limit=1",
    )
    assert [len(step["groups"]) for step in run.consumed] == [8] * 4
    ordinals, dropped = collections.defaultdict(list), []
    for entry in run.ledger:
        for one in entry.get("leases", ()):
            if entry["event"] == "leased":
                ordinals[one["ordinal"]].append(one["lease_id"])
            if entry["event"] == "dropped" and entry["reason"] == "environment failure":
                dropped.append((one["ordinal"], one["lease_id"]))
    assert dropped
    assert len(dict(dropped)) == len(dropped), "a prompt was leased again too often"
    for ordinal, lease_id in dropped:
        assert ordinals[ordinal][-1] > lease_id, "its prompt was not leased again"
    lost = {one["lease_id"] for one in failed_episodes(run) if one["is_lost"]}
    assert {lease_id for _, lease_id in dropped} <= lost
    trained = {group["lease_id"]: group for step in run.consumed for group in step["groups"]}
    with_holes = {group["ordinal"] for lease_id, group in trained.items() if lease_id in lost}
    assert with_holes <= set(dict(dropped)), "its prompt was not leased again"
    whys = {one["why"] for one in failed_episodes(run)}
    assert "ArithmeticError: the board is broken" in whys
    assert "Failed attempts at episodes:" in run.output
    assert processes_of(run.workdir) == {}


def failed_episodes(run):
    """Returns the failed episodes of a run's ledger, each with a line of its own."""
    entries = [entry for entry in run.ledger if entry["event"] == EPISODE_FAILED]
    for entry in entries:
        (lease,) = entry["leases"]
        assert lease["lease_id"] == entry["episode"]["lease_id"]
        assert "\n" not in entry["episode"]["why"]
    return [entry["episode"] for entry in entries]


@pytest.mark.nightly
def test_a_run_whose_environments_mostly_fail_stops_with_a_traceback(tmp_path):
    process = launch(
        *FAULTY,
        "--config.environment.name=tests/runs/faulty.py:Faulty(always=True)",
        "--config.evaluation.problems=32",
        workdir=tmp_path / "run",
    )
    output = ended(process)
    assert process.returncode == 1
    assert "more than reward.unjudged_limit=0.1 allows" in output
    assert "ArithmeticError: the board is broken" in output
    assert "faulty.py" in output


@pytest.mark.nightly
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
