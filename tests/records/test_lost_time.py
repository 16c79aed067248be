"""The time that a run has lost, followed while it goes on, and over resumptions."""

import pytest

from rl_sync.records.lost_time import LostTimeWatch, RestartLines
from rl_sync.records.outages import LostTime
from rl_sync.records.resumption import mark
from rl_sync.records.run_records import RunRecords
from rl_sync.records.span_reader import SpanLines
from rl_sync.records.spans import Span, SpanKind
from rl_sync.workdir import Workdir
from tests.page.small_run import append


def train(start, step):
    return Span("trainer", SpanKind.TRAIN, start, start + 1, {"step": step}).to_json()


def rollout(start):
    return Span("explorer1", SpanKind.ROLLOUT, start, start + 1).to_json()


@pytest.fixture
def at(tmp_path):
    """A run from second 100 to 150, whose trainer was out for 10 s."""
    at = Workdir(tmp_path)
    append(at.spans_of("explorer1"), rollout(100))
    append(at.spans_of("trainer"), train(105, 1), train(130, 2), train(149, 3))
    return at


def died(at, secs, role="trainer"):
    append(at.restarts, {"time": secs, "role": role, "why": "killed"})


def watch(at):
    restarts, spans = RestartLines(at), SpanLines(at)
    return LostTimeWatch(restarts, spans), spans


def test_spans_are_not_read_until_a_role_died(at):
    follows, spans = watch(at)
    follows.refresh()
    assert follows.now() == LostTime()
    assert spans.by_role == {}
    died(at, 120.0)
    follows.refresh()
    lost = follows.now()
    assert (lost.effective_share, lost.secs_per_failure) == (0.8, 10.0)


def test_the_watch_and_the_summary_agree(at):
    died(at, 120.0)
    run = RunRecords(at)
    run.read(rollouts=False)
    assert run.lost == run.summary.lost
    assert run.lost.lost_secs == 10.0


def test_long_records_are_computed_seldom(at, monkeypatch):
    now = iter([0.0, 10.0, 11.0, 509.0, 511.0, 511.5])
    monkeypatch.setattr("rl_sync.records.lost_time.time.monotonic", lambda: next(now))
    follows, _ = watch(at)
    died(at, 120.0)
    follows.refresh()
    first = follows.now()  # It took 10 s, which is 2 % of 500 s.
    died(at, 145.0)
    follows.refresh()
    assert follows.now() is first
    assert follows.now() is first
    assert len(follows.now().outages) == 2


def test_the_time_between_two_attempts_is_not_lost(at):
    """It was resumed 1000 s later from step 2, so step 3 is void; then the trainer died again."""
    died(at, 120.0)
    began = 1150.0
    append(
        at.spans_of("trainer"),
        mark(2, began=began),
        train(1160, 3),
        train(1180, 4),
        train(1200, 5),
    )
    died(at, 1170.0)
    died(at, 145.0, "master")  # In the part that is void: it delayed step 3, which came anew.
    run = RunRecords(at)
    run.read(rollouts=False)
    first, second, third = run.lost.outages
    assert (first.lost_secs, second.lost_secs) == (10.0, 10.0)
    assert third.lost_secs == pytest.approx(1160.0 - began)
    assert run.summary.wall_secs == pytest.approx(131 - 100 + 1201 - began)


def test_a_death_before_rl_costs_none_of_its_time(tmp_path):
    at = Workdir(tmp_path)
    died(at, 120.0)
    follows, _ = watch(at)
    follows.refresh()
    assert follows.now() == LostTime()
