"""The closed forms and the simulation agree where both are exact."""

import dataclasses

import pytest

from rl_sync.records.spans import SpanKind
from rl_sync.records.summary import of_kind
from rl_sync.schedule import resolve
from rl_sync.simulation.speed.closed_forms import StepTimes, closed_form, step_secs_of
from rl_sync.simulation.speed.prediction import simulate, with_steps
from rl_sync.simulation.speed.workload import Samples, SharedCores
from tests.simulation.speed.plans import plan_with, work_with

pytestmark = pytest.mark.gate

TIMES = [(3.0, 2.0, 0.5), (1.0, 4.0, 0.25), (2.0, 2.0, 0.0)]


def pace(plan, work):
    """Returns the time of a step, over whole intervals in the middle of a long run."""
    trained = of_kind(simulate(with_steps(plan, 84), work), SpanKind.TRAIN)
    return (trained[76].end_secs - trained[28].end_secs) / 48


def test_they_are_these_formulas():
    times = StepTimes(rollout=3.0, deliver=0.5, train=2.0, sync=0.25, pull=0.125)
    assert step_secs_of(times, resolve("synchronous"), True) == 3.0 + 0.5 + 2.0 + 0.25
    four = resolve("synchronous", interval=4)
    assert step_secs_of(times, four, True) == (4 * 3.0 + 2.0 + 0.5 + 0.25) / 4
    one = resolve("one_step_off_policy")
    assert step_secs_of(times, one, True) == 3.0 + 0.25
    assert step_secs_of(times._replace(train=5.0), one, True) == 5.0 + 0.25
    assert step_secs_of(times._replace(deliver=2.5), one, True) == (3.0 + 2.5 + 2.0 + 0.25) / 2
    free = resolve("asynchronous", max_staleness=8)
    assert step_secs_of(times, free, False) == 3.125
    assert step_secs_of(times._replace(train=5.0), free, False) == 5.0
    tight = resolve("asynchronous", max_staleness=0)
    assert step_secs_of(times, tight, False) == 3.0 + 0.5 + 2.0 + 0.25


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
@pytest.mark.parametrize("explorers", [1, 2])
def test_synchronous_runs_take_all_times_one_after_the_other(rollout, train, pull, explorers):
    work = work_with(rollout, train, pull, judge=Samples.of(0.25), layout=Samples.of(0.125))
    plan = plan_with("synchronous", explorers=explorers)
    expected = rollout + 0.25 + 0.125 + train + explorers * pull
    assert closed_form(plan, work) == pytest.approx(expected)
    assert pace(plan, work) == pytest.approx(expected)


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
def test_synchronous_runs_by_checkpoint_take_the_publication_too(rollout, train, pull):
    work = work_with(rollout, train, pull, publish=0.75)
    plan = plan_with("synchronous", transfer="checkpoint")
    assert closed_form(plan, work) == pytest.approx(rollout + train + 0.75 + pull)
    assert pace(plan, work) == pytest.approx(rollout + train + 0.75 + pull)


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
@pytest.mark.parametrize("interval", [2, 4])
def test_an_interval_overlaps_its_steps_and_shares_a_sync(rollout, train, pull, interval):
    work, sync = work_with(rollout, train, pull, judge=Samples.of(0.5)), {"interval": interval}
    plan = plan_with("synchronous", sync=sync)
    assert pace(plan, work) == pytest.approx(closed_form(plan, work))
    longer, shorter = max(rollout, train), min(rollout, train)
    assert closed_form(plan, work) == (interval * longer + shorter + 0.5 + pull) / interval


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
@pytest.mark.parametrize("judge", [0.0, 1.0])
def test_one_step_off_policy_runs_take_the_longer_time(rollout, train, pull, judge):
    work = work_with(rollout, train, pull, judge=Samples.of(judge))
    plan = plan_with("one_step_off_policy")
    assert pace(plan, work) == pytest.approx(closed_form(plan, work))


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
@pytest.mark.parametrize("bound", [0, 1, 2, 8])
def test_asynchronous_runs_are_as_fast_as_their_slower_side_or_as_their_bound(
    rollout, train, pull, bound
):
    work = work_with(rollout, train, pull, judge=Samples.of(1.5))
    plan = plan_with("asynchronous", sync={"max_staleness": bound})
    expected = max(train, rollout + pull, (rollout + 1.5 + train + pull) / (bound + 1))
    assert closed_form(plan, work) == expected
    assert pace(plan, work) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("rollout", "train", "pull"), TIMES)
@pytest.mark.parametrize(("interval", "offset"), [(1, 2), (2, 1), (3, 2), (4, 4)])
def test_custom_schedules_follow_the_same_form(rollout, train, pull, interval, offset):
    work = work_with(rollout, train, pull, judge=Samples.of(1.5))
    sync = {"interval": interval, "offset": offset}
    for transfer in ("collective", "checkpoint"):
        plan = plan_with("custom", sync=sync, transfer=transfer)
        assert pace(plan, work) == pytest.approx(closed_form(plan, work), rel=0.02)


def test_shared_cores_take_the_time_of_all_work():
    work = work_with(3.0, 2.0, 0.0, shared=SharedCores(2.0, trainer=2.0, explorer=2.0))
    plan = plan_with("asynchronous", sync={"max_staleness": 8})
    assert closed_form(plan, work) == 5.0
    assert pace(plan, work) == pytest.approx(5.0, rel=0.05)


def test_varying_times_are_slower_than_their_means_where_roles_wait():
    work = work_with(2.0, 2.0, 0.0, train_samples=Samples.of(1.0, 3.0))
    plan = plan_with("one_step_off_policy")
    assert closed_form(plan, work) == 2.0
    assert pace(plan, work) == pytest.approx(2.5, rel=0.1)
    steady = dataclasses.replace(work, train=Samples.of(2.0))
    assert pace(plan, steady) == pytest.approx(2.0)
