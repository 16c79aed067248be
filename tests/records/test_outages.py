"""The time that a run loses when roles die."""

import pytest

from rl_sync.records.outages import LostTime, Outage, Restart, effective_share, lost_time, outages
from rl_sync.records.spans import Span, SpanKind


def train(start, step, again=False):
    kind = SpanKind.TRAIN_AGAIN if again else SpanKind.TRAIN
    return Span("trainer", kind, start, start + 1, {"step": step})


def rollout(explorer, start):
    return Span(f"explorer{explorer}", SpanKind.ROLLOUT, start, start + 1)


SPANS = [
    *(train(0, 1), train(10, 2)),
    *(train(24, 1, again=True), train(26, 2, again=True), train(30, 3), train(60, 4)),
    *(rollout(1, 0), rollout(1, 12), rollout(1, 55), rollout(2, 1), rollout(2, 42)),
]


def test_an_outage_of_the_trainer_ends_with_a_step_that_counts():
    assert outages([Restart("trainer", 20.0)], SPANS, 100.0) == [Outage("trainer", 20.0, 30.0, 1.0)]


def test_an_outage_of_an_explorer_counts_for_its_part_of_the_explorers():
    (found,) = outages([Restart("explorer1", 50.0)], SPANS, 100.0)
    assert (found.end_secs, found.share, found.lost_secs) == (55.0, 0.5, 2.5)


def test_an_outage_of_a_server_ends_with_the_next_work_of_anybody():
    (found,) = outages([Restart("master", 41.0)], SPANS, 100.0)
    assert (found.end_secs, found.share) == (42.0, 1.0)


def test_a_role_that_does_not_come_back_is_out_to_the_end():
    (found,) = outages([Restart("trainer", 70.0)], SPANS, 100.0)
    assert found.end_secs == 100.0
    assert outages([Restart("trainer", 100.0)], SPANS, 100.0) == []


@pytest.mark.parametrize(
    ("found", "share"),
    [
        ([], 1.0),
        ([Outage("trainer", 20.0, 30.0, 1.0)], 0.9),
        ([Outage("trainer", 20.0, 30.0, 1.0), Outage("master", 25.0, 35.0, 1.0)], 0.85),
        ([Outage("trainer", 20.0, 30.0, 1.0), Outage("explorer1", 25.0, 35.0, 0.5)], 0.875),
        ([Outage("trainer", -50.0, 10.0, 1.0), Outage("trainer", 95.0, 200.0, 1.0)], 0.85),
    ],
)
def test_time_that_several_lose_counts_once(found, share):
    assert effective_share(found, 0.0, 100.0) == pytest.approx(share)


def test_only_time_within_the_interval_is_lost():
    deaths = [Restart("trainer", 20.0), Restart("explorer1", -5.0)]
    (trainer,) = lost_time(deaths, SPANS, 25.0, 100.0).outages
    assert (trainer.role, trainer.lost_secs) == ("trainer", 5.0)


def test_outages_are_told_if_there_are_any():
    assert LostTime().describe() == []
    (line,) = LostTime((Outage("explorer1", 0.0, 5.0, 0.5),), 0.9375).describe()
    assert line == ("effective: 93.8% of the time led to steps that count; lost: explorer1 2.5 s")


def test_the_metrics_have_the_share_the_deaths_and_the_mean_loss():
    lost = lost_time([Restart("trainer", 20.0), Restart("explorer1", 50.0)], SPANS, 0.0, 100.0)
    assert lost.metrics() == {
        "run/effective_share": pytest.approx(1 - 12.5 / 100),
        "run/failures": 2.0,
        "run/secs_per_failure": 6.25,
    }
    assert LostTime().metrics() == {"run/effective_share": 1.0, "run/failures": 0.0}
