"""The trace: valid for its viewers, and complete."""

import json
from collections import defaultdict

import pytest

from rl_sync.display.trace import trace_events, write_trace
from rl_sync.records.spans import Span, SpanKind
from tests.records.simulated_runs import MODES, simulate, write_spans


def _by_phase(events, phase):
    return [event for event in events if event["ph"] == phase]


def _overlapping() -> list[Span]:
    return [
        Span("explorer1", SpanKind.ROLLOUT, 0.0, 2.0, {"step": 1}),
        Span("explorer1", SpanKind.SCORE, 1.0, 3.0, {"step": 1}),
        Span("explorer1", SpanKind.WAIT, 1.5, 2.0, {"reason": "prompts"}),
        Span("explorer1", SpanKind.ROLLOUT, 2.0, 4.0, {"step": 2}),
    ]


def _inserts_at_once() -> list[Span]:
    return [
        Span("explorer1", SpanKind.INSERT, 0.0, 1.0, {"leases": [0]}),
        Span("explorer2", SpanKind.INSERT, 0.0, 1.0, {"leases": [1]}),
        Span("explorer3", SpanKind.INSERT, 0.0, 1.0003, {"leases": [2]}),
        Span("explorer4", SpanKind.INSERT, 0.0, 1.0009, {"leases": [3]}),
    ]


@pytest.mark.parametrize(
    "spans",
    [*map(simulate, MODES), _overlapping(), _inserts_at_once()],
    ids=[*MODES, "threads", "inserts at once"],
)
def test_slices_of_a_lane_nest_or_are_disjoint(spans):
    lanes = defaultdict(list)
    for event in _by_phase(trace_events(spans), "X"):
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        open_ends = []
        for start, end in sorted(slices, key=lambda slice_: (slice_[0], -slice_[1])):
            while open_ends and open_ends[-1] <= start + 0.5:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.5
            open_ends.append(end)


@pytest.mark.parametrize("mode", MODES)
def test_every_span_is_a_slice_and_every_arrow_point_lies_in_one(mode):
    spans = simulate(mode)
    events = trace_events(spans)
    slices = _by_phase(events, "X")
    assert len([event for event in slices if event["cat"] != "buffer"]) == len(spans)
    points = [event for event in events if event["ph"] in "stf"]
    assert len(_by_phase(events, "s")) == len(_by_phase(events, "f")) == 12
    for point in points:
        assert any(
            event["pid"] == point["pid"]
            and event["tid"] == point["tid"]
            and event["ts"] - 0.5 <= point["ts"] <= event["ts"] + event["dur"] + 0.5
            for event in slices
        )


def test_an_arrow_goes_from_the_insert_through_the_buffer_to_the_train_step():
    spans = [
        Span("explorer1", SpanKind.INSERT, 1.0, 2.0, {"step": 1, "leases": [0, 1]}),
        Span("trainer", SpanKind.TRAIN, 5.0, 6.0, {"step": 1, "leases": [0, 1]}),
    ]
    events = trace_events(spans)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    points = [event for event in events if event["ph"] in "stf"]
    assert [(point["ph"], names[point["pid"]], point["ts"]) for point in points] == [
        ("s", "explorer1", 500_000),
        ("t", "buffer", 1_000_000),
        ("t", "buffer", 4_000_000),
        ("f", "trainer", 4_000_001),
    ]
    counts = [(event["ts"], event["args"]["groups"]) for event in _by_phase(events, "C")]
    assert counts == [(1_000_000, 2), (4_000_000, 0)]


def test_lanes_stand_in_the_order_that_groups_pass():
    events = trace_events(simulate("multi_explorer"))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["explorer1", "explorer2", "explorer3", "buffer", "trainer"]


def test_the_file_is_json(tmp_path):
    write_spans(tmp_path, simulate("asynchronous", 3))
    path = write_trace(tmp_path)
    assert path == tmp_path / "trace.json"
    assert len(json.loads(path.read_text())["traceEvents"]) > 20
    assert not list(tmp_path.glob("*.tmp"))


def test_no_spans_make_no_events():
    assert trace_events([]) == []
