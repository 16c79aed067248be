"""The buffer's fill level and the path of groups, derived from spans."""

import itertools

import pytest

from rl_sync.records import buffer_level
from rl_sync.records.spans import Span, SpanKind
from tests.records.simulated_runs import GROUPS, MODES, simulate


def _insert(end: float, leases: list[int], role="explorer1", **attributes) -> Span:
    return Span(role, SpanKind.INSERT, end - 0.5, end, {"leases": leases, **attributes})


def _train(start: float, step: int, leases: list[int], **attributes) -> Span:
    about = {"step": step, "leases": leases, **attributes}
    return Span("trainer", SpanKind.TRAIN, start, start + 1, about)


def test_the_level_rises_at_the_end_of_an_insert_and_falls_at_the_start_of_a_train_step():
    spans = [_insert(1, [0, 1]), _insert(2, [2]), _train(3, 1, [0, 2]), _train(5, 2, [1])]
    levels = buffer_level.fill_level(spans)
    assert levels == [(1, 2), (2, 3), (3, 1), (5, 0)]
    assert [buffer_level.level_at(levels, secs) for secs in (0, 1, 2.5, 4, 9)] == [0, 2, 3, 1, 0]


def test_a_group_leaves_with_its_last_use_and_a_dropped_one_leaves_too():
    spans = [_insert(1, [0, 1, 2]), _train(2, 1, [0], dropped=[2]), _train(4, 2, [0, 1])]
    assert buffer_level.fill_level(spans) == [(1, 3), (2, 2), (4, 0)]


def test_a_group_that_is_refused_in_a_wait_leaves_at_its_end():
    wait = Span("trainer", SpanKind.WAIT, 2, 3, {"step": 1, "dropped": [1]})
    spans = [_insert(1, [0, 1]), wait, _train(4, 1, [0])]
    assert buffer_level.fill_level(spans) == [(1, 2), (3, 1), (4, 0)]


def test_groups_that_are_taken_before_their_insert_returns_pass_through_the_buffer():
    """An insert from 1.5 to 2.0, of which a train step takes a group at 1.9."""
    spans = [_insert(2.0, [0, 1]), _train(1.9, 1, [0]), _train(3.5, 2, [1])]
    for order in itertools.permutations(spans):
        assert buffer_level.fill_level(order) == [(1.5, 1), (1.9, 0), (2.0, 1), (3.5, 0)]
        (entry,) = buffer_level.entries(order)
        assert (entry.end_secs, sorted(entry.leases)) == (2.0, [0, 1])


def test_the_level_never_falls_below_nothing_whatever_clocks_say():
    spans = [_insert(2.0, [0]), _train(1.2, 1, [0]), _train(1.4, 2, [0])]
    for order in itertools.permutations(spans):
        assert buffer_level.fill_level(order) == [(1.2, 1), (1.4, 0)]
    assert buffer_level.fill_level([_train(1.0, 1, [0])]) == [], "its insert has not ended yet"


def test_a_failed_insert_brings_nothing():
    assert buffer_level.fill_level([_insert(1, [0], error="TimeoutError")]) == []
    assert buffer_level.entries([_insert(1, [0], error="TimeoutError")]) == []


def test_streamed_inserts_of_one_step_are_one_entry():
    rollout = Span("explorer1", SpanKind.ROLLOUT, 0, 1, {"step": 4, "leases": [0, 1, 2]})
    other = Span("explorer2", SpanKind.ROLLOUT, 0, 1, {"step": 5, "leases": [3]})
    spans = [rollout, other, _insert(2, [0]), _insert(3, [1, 2]), _insert(2.5, [3], "explorer2")]
    assert buffer_level.entries(spans) == [
        ("explorer2", 5, 2.0, 2.5, (3,)),
        ("explorer1", 4, 1.5, 3, (0, 1, 2)),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_no_run_takes_more_than_was_put_in(mode):
    spans = simulate(mode)
    levels = buffer_level.fill_level(spans)
    assert min(level.groups for level in levels) >= 0
    inserted = sum(len(span.leases) for span in spans if span.kind is SpanKind.INSERT)
    trained = sum(len(span.leases) for span in spans if span.kind is SpanKind.TRAIN)
    assert trained == 12 * GROUPS
    assert levels[-1].groups == inserted - trained
