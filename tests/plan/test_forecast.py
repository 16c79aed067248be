"""Forecasts follow the schedule's rules, and give the modes' known paces."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.plan.forecast import Durations, forecast
from rl_sync.schedule import SyncSchedule, resolve


def of(rollout: float, train: float, sync: float = 0.0) -> Durations:
    return Durations(lambda e, explorer: rollout, lambda t: train, sync)


def pace(schedule: SyncSchedule, durations: Durations, explorers: int = 1, meets: bool = False):
    return forecast(schedule, explorers, meets, durations, steps=40).step_secs


@pytest.mark.parametrize(("rollout", "train", "sync"), [(3.0, 2.0, 0.5), (1.0, 4.0, 0.25)])
def test_modes_have_their_known_paces(rollout, train, sync):
    times = of(rollout, train, sync)
    synchronous = resolve("synchronous")
    assert pace(synchronous, times, meets=True) == pytest.approx(rollout + train + sync)
    one_step = resolve("one_step_off_policy")
    assert pace(one_step, times, meets=True) == pytest.approx(max(rollout, train) + sync)
    free = resolve("asynchronous", max_staleness=4)
    slower = max(rollout + sync, train)
    assert pace(free, times) == pytest.approx(slower, rel=0.1)
    several = resolve("multi_explorer", max_staleness=8)
    slower = max((rollout + sync) / 3, train)
    assert pace(several, times, explorers=3) == pytest.approx(slower, rel=0.1)


def test_an_interval_shares_a_sync_between_its_steps():
    schedule = resolve("synchronous", interval=4)
    assert pace(schedule, of(2.0, 1.0, 4.0), meets=True) == pytest.approx((2.0 * 4 + 1.0 + 4.0) / 4)


def test_a_tight_bound_makes_explorers_wait():
    tight, wide = (resolve("asynchronous", max_staleness=most) for most in (0, 4))
    assert pace(tight, of(3.0, 3.0)) == pytest.approx(6.0)
    assert pace(wide, of(3.0, 3.0)) == pytest.approx(3.0)


def test_uneven_rollouts_cost_only_those_who_wait():
    times = Durations(lambda e, explorer: 6.0 if e % 4 == 0 else 1.0, lambda t: 2.0, 0.0)
    assert pace(resolve("synchronous"), times, meets=True) == pytest.approx((1 + 1 + 1 + 6) / 4 + 2)
    assert pace(resolve("asynchronous", max_staleness=4), times) < 2.6


@settings(deadline=None)
@given(
    interval=st.integers(1, 4),
    offset=st.integers(0, 4),
    exact=st.booleans(),
    more=st.integers(0, 3),
    explorers=st.integers(1, 3),
    meets=st.booleans(),
    rollout=st.floats(0.1, 10),
    train=st.floats(0.1, 10),
)
def test_rules_hold_at_any_pace(interval, offset, exact, more, explorers, meets, rollout, train):
    if exact:
        schedule = SyncSchedule(interval, offset, "exact", interval + offset - 1)
    else:
        schedule = SyncSchedule(interval, 0, "latest", interval - 1 + more)
    meets = meets and exact
    found = forecast(schedule, explorers, meets, of(rollout, train, 0.3), steps=12)
    ends = {0: 0.0} | {t: end for t, end in enumerate(found.ends, start=1)}
    done = {}
    for span in found.spans:
        if span.kind == "rollout":
            assert schedule.may_start(span.step, span.version)
            assert span.begin >= ends[span.version] - 1e-9
            done[span.step] = max(done.get(span.step, 0.0), span.end)
    for t, begin in ((s.step, s.begin) for s in found.spans if s.kind == "train"):
        assert sorted(done.values())[t - 1] <= begin + 1e-9
    for role in range(explorers + 1):
        mine = [span for span in found.spans if span.role == role]
        assert all(a.end <= b.begin + 1e-9 for a, b in itertools.pairwise(mine))
        assert 0 <= found.busy(role) <= 1 + 1e-9
