"""Runs in which groups that teach nothing are dropped, and other prompts take their places; and
in which more groups are generated than are trained on."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.tasks.order import prompt_at
from tests.runs.conftest import RunRecord

pytestmark = pytest.mark.gate

# A task of which even this model, after 60 batches, solves some problems and not others.
EASY = {"operators": "+", "least_operand": 0, "greatest_operand": 5, "held_out_problems": 8}
FLAGS = (
    *(f"--config.task.arithmetic.{name}={value}" for name, value in EASY.items()),
    "--config.sft.steps=60",
    "--config.algorithm.name=dapo",
    "--config.algorithm.max_attempts=3",
    "--config.algorithm.over_sampling=1.5",
)
EXACT = (
    *FLAGS,
    "--config.sync.mode=one_step_off_policy",
    "--config.algorithm.keep=best",
    "--config.reward.record=all",
)
ASYNCHRONOUS = (
    *FLAGS,
    "--config.sync.mode=asynchronous",
    "--config.algorithm.demonstration_rows=8",
    "--config.algorithm.demonstration_coefficient=0.2",
)


def replacements(run: RunRecord) -> dict[int, int]:
    """Returns the replacements of each lease."""
    leased = [entry["leases"] for entry in run.ledger if entry["event"] == "leased"]
    return {lease["lease_id"]: lease["replacement"] for leases in leased for lease in leases}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flags",
    [EXACT, pytest.param(ASYNCHRONOUS, marks=pytest.mark.nightly)],
    ids=["exact", "asynchronous"],
)
def test_every_group_without_spread_is_replaced_or_counted(memory_runs, flags):
    run = memory_runs(*flags)
    settings, schedule = run.settings, run.settings.schedule
    leased, trained, dropped = (run.leases(name) for name in ("leased", "trained", "dropped"))
    assert trained + dropped == leased, "a lease ended in no way, or in two"
    assert len(trained) == settings.trainer.steps * settings.trainer.groups_per_step
    balance = run.ledger[-1]
    assert balance["dropped"].pop("no spread") > 0
    assert settings.groups_generated == 9
    left_out = settings.trainer.steps * (9 - settings.trainer.groups_per_step)
    assert balance["dropped"].pop("left out of the batch") == left_out
    assert set(balance["dropped"]) <= {"too stale", "the run ended"}
    assert balance["out_of_attempts"] == len(run.leases("out of attempts"))
    assert set(run.leases("out of attempts")) <= set(run.leases("buffered"))
    tried = collections.Counter(replacements(run).values())
    assert set(tried) == {0, 1, 2}
    order, problems = replacements(run), len(wiring.load_task(settings).train)
    for step in run.consumed:
        for group in step["groups"]:
            drawn = group["ordinal"], problems, settings.seed, order[group["lease_id"]]
            assert group["prompt_id"] == prompt_at(*drawn)
        for version in run.versions(step):
            assert 0 <= schedule.staleness(step["step"], version) <= schedule.staleness_bound
    kept = f"{balance['out_of_attempts']} admitted that teach nothing"
    assert kept in run.output or not balance["out_of_attempts"]


def test_the_mean_reward_is_of_all_groups_that_were_generated(memory_runs):
    run = memory_runs(*EXACT)
    size = run.settings.groups_generated
    leased = [entry["leases"] for entry in run.ledger if entry["event"] == "leased"]
    steps = {
        lease["lease_id"]: lease["ordinal"] // size + 1 for leases in leased for lease in leases
    }
    rewards, selected = collections.defaultdict(list), collections.defaultdict(list)
    trained = {
        step["step"]: {group["lease_id"] for group in step["groups"]} for step in run.consumed
    }
    for judged in run.judged:
        if (step := steps.get(judged["lease"])) is not None:
            rewards[step].append(judged["score"])
            if judged["lease"] in trained[step]:
                selected[step].append(judged["score"])
    lines = read_metrics(run.workdir, "rl")
    assert len(lines) == run.settings.trainer.steps
    for line in lines:
        step = line["step"]
        assert line["reward_mean"] == pytest.approx(np.mean(rewards[step]), abs=1e-6)
        assert line["selected_reward_mean"] == pytest.approx(np.mean(selected[step]), abs=1e-6)
        assert line["reward_max"] == max(rewards[step])
    assert any(line["reward_mean"] < line["selected_reward_mean"] - 0.05 for line in lines)
    assert f"reward {lines[-1]['reward_mean']:.3f} (" in run.output


@pytest.mark.nightly
def test_a_run_learns_from_demonstrations_beside_its_rollouts(memory_runs):
    run = memory_runs(*ASYNCHRONOUS)
    losses = [line["demonstration_loss"] for line in read_metrics(run.workdir, "rl")]
    assert len(losses) == run.settings.trainer.steps
    # SFT has left the demonstrations' tokens likely, but not certain.
    assert all(0 < loss < 1.5 for loss in losses)


@pytest.mark.nightly
def test_in_exact_modes_the_same_groups_are_replaced_again(memory_runs):
    run, again = memory_runs(*EXACT), memory_runs(*EXACT, "--config.name=again")
    assert run.digest == again.digest
    assert [step["groups"] for step in run.consumed] == [step["groups"] for step in again.consumed]
    assert run.leases("dropped") == again.leases("dropped")
    size, schedule = run.settings.groups_generated, run.settings.schedule
    for step in run.consumed:
        assert run.versions(step) == {schedule.exact_version(step["step"])}
        ordinals = [group["ordinal"] for group in step["groups"]]
        assert ordinals == sorted(ordinals)
        assert set(ordinals) <= set(range((step["step"] - 1) * size, step["step"] * size))
