import re

import pytest

from rl_sync.page.charts import Series, chart, log_ticks, nice_ticks, short, smoothed, thinned
from rl_sync.page.flow import Flow
from rl_sync.page.samples import Query
from rl_sync.page.text import number, tokens, visible
from rl_sync.page.watched_run import open_runs
from rl_sync.records.rollout_records import Rollout, part_name
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.page.small_run import append, ledger, metrics, rollout, write_run, write_step


@pytest.fixture
def run(tmp_path):
    (one,) = open_runs([write_run(tmp_path / "run")])
    one.refresh()
    return one


def test_a_run_is_read_on_as_it_grows(run, tmp_path):
    before = run.stamp()
    append(Workdir(tmp_path / "run").metrics, metrics(5))
    write_step(tmp_path / "run", 5)
    assert run.stamp() != before
    run.refresh()
    assert [line["step"] for line in run.progress.lines] == [1, 2, 3, 4, 5]
    assert run.flow.now.trained == 10
    assert run.samples.count == 20


def test_steps_before_a_resumption_are_void(run, tmp_path):
    at = Workdir(tmp_path / "run")
    for path in (at.metrics, at.ledger, at.consumed):
        append(path, {"time": 0.0, "event": "resumed", "resumed_at": 2})
    append(at.metrics, metrics(3, reward_mean=0.9))
    run.refresh()
    assert [line["step"] for line in run.progress.lines] == [1, 2, 3]
    assert run.progress.lines[-1]["reward_mean"] == 0.9
    assert sorted(run.flow.staleness) == [1, 2]
    append(at.ledger, ledger(3, "dropped", [6, 7, 8, 9], "resumed"))
    run.refresh()
    assert (run.flow.now.trained, run.flow.now.buffered) == (4, 0)
    assert run.flow.dropped == {"resumed": 4}


def test_the_flow_counts_each_lease_once(tmp_path):
    flow, path = Flow(tmp_path), Workdir(tmp_path).ledger
    append(path, ledger(1, "leased", [1, 2, 3]), ledger(1, "buffered", [1, 2]))
    append(path, ledger(1, "out of attempts", [2]), ledger(1, "trained", [1]))
    append(path, ledger(2, "dropped", [2], "too stale"), {"event": "balance", "leased": 3})
    flow.refresh()
    assert flow.now[1:] == (1, 0, 1, 1)  # Generating, buffered, trained, dropped.
    assert flow.leased == 3
    assert flow.dropped == {"too stale": 1}


def test_staleness_counts_tokens(run):
    assert run.flow.staleness[4] == {0: 6, 1: 2}
    assert run.progress.staleness_bound == 2


def test_alarms_and_restarts_are_told(run, tmp_path):
    at = Workdir(tmp_path / "run")
    append(at.metrics, *(metrics(step, reward_max=0.0) for step in range(5, 8)))
    append(at.restarts, {"role": "explorer1", "time": 0.0})
    run.refresh()
    assert [one.alarm.name for one in run.progress.periods] == ["no reward", "restarts"]


def test_a_fall_of_accuracy_is_told_when_its_evaluation_is_written(run, tmp_path):
    at = Workdir(tmp_path / "run").metrics
    before = [one.alarm.name for one in run.progress.periods]
    for step, middle in ((4, 0.75), (5, 0.12)):
        values = {"accuracy": middle, "accuracy_low": middle - 0.05, "accuracy_high": middle + 0.05}
        append(at, {"phase": "evaluation", "step": step, "time": 9.0, "problems": 300, **values})
    run.refresh()
    last = run.progress.periods[-1]
    assert [one.alarm.name for one in run.progress.periods] == [*before, "accuracy fell"]
    assert (last.first_step, last.last_step) == (5, run.progress.last_step)


def test_a_role_tells_whom_it_waits_for(tmp_path):
    span = {"role": "explorer1", "start": 100.0, "end": 106.0, "kind": "rollout"}
    wait = {"reason": "synchronization", "for_whom": "the trainer"}
    append(
        Workdir(tmp_path).spans_of("explorer1"),
        span | {"attributes": {"version": 3}},
        span | {"start": 105.0, "end": 110.0, "kind": "wait", "attributes": wait},
        {"resumed_at": 1, "began": 5.0},
        {"kind": "no such kind", "start": 1, "end": 2},
    )
    (run,) = open_runs([tmp_path])
    run.refresh()
    (role,) = run.activity.now()
    assert role.busy == pytest.approx(0.6)
    assert role.waits == (("synchronization", "the trainer", pytest.approx(0.4)),)


def test_a_window_has_few_blocks_however_many_spans_there_are(tmp_path):
    spans = [
        {"role": "trainer", "kind": "train", "start": t / 10, "end": t / 10 + 0.09}
        for t in range(20_000)
    ]
    append(Workdir(tmp_path).spans_of("trainer"), *spans)
    (run,) = open_runs([tmp_path])
    run.refresh()
    assert 400 <= len(run.activity.lane("trainer", 0.0, 2000.0, pixels=500)) <= 1100
    near = run.activity.lane("trainer", 500.0, 501.0, pixels=500)
    assert len(near) == 10
    assert all(500.0 <= start < end <= 501.0 for _, start, end, *_ in near)


def test_short_work_beside_long_work_goes_aside_and_syncs_lie_on_top(tmp_path):
    def one(kind, start, end):
        return {"role": "explorer1", "kind": kind, "start": start, "end": end}

    append(
        Workdir(tmp_path).spans_of("explorer1"),
        one("sync_checkpoint", 1.0, 1.2),
        one("insert", 2.0, 3.0),
        one("rollout", 0.0, 4.0),
        one("wait", 4.0, 6.0),
        one("insert", 6.0, 7.0),
    )
    (run,) = open_runs([tmp_path])
    run.refresh()
    lane = run.activity.lane("explorer1", 0.0, 7.0, pixels=700)
    assert [(kind, start, aside) for kind, start, _, _, aside in lane] == [
        (SpanKind.WAIT, 4.0, 0),
        (SpanKind.ROLLOUT, 0.0, 0),
        (SpanKind.INSERT, 2.0, 1),
        (SpanKind.INSERT, 6.0, 0),
        ("sync_checkpoint", 1.0, 0),
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(first_step=2, last_step=2, sort="reward"), [(4, 1), (5, 1), (4, 0), (5, 0)]),
        (Query(lease=4), [(4, 0), (4, 1)]),
        (Query(prompt_id=9, least=0.5), [(9, 0)]),
        (Query(greatest=0.5, first_step=4, sort="step"), [(8, 1), (9, 1)]),
        (Query(text="8+1", sort="-reward"), [(8, 0), (8, 1)]),
    ],
)
def test_completions_are_filtered_and_sorted(run, query, found):
    assert [(row.lease, row.sample) for row in run.samples.find(query).rows] == found


def test_unjudged_completions_come_last_and_fit_no_bound(run, tmp_path):
    path = Workdir(tmp_path / "run").rollouts / part_name(1)
    append(path, rollout(5, 10, reward=None))
    run.refresh()
    for order in ("reward", "-reward"):
        assert run.samples.find(Query(sort=order)).rows[-1].reward is None
    assert len(run.samples.find(Query(greatest=9.0)).rows) == 16


def test_records_that_a_resumed_run_removed_are_forgotten(run, tmp_path):
    folder = Workdir(tmp_path / "run").rollouts
    (row, *_) = run.samples.find(Query()).rows
    (folder / part_name(1)).write_bytes(b"")
    assert run.samples.whole(row) is None
    run.refresh()
    assert run.samples.count == 0


def test_tokens_have_the_classes_of_their_numbers():
    record = rollout(1, 3, versions=[[7, 1], [-1, 1]], logprobs=[-0.3, None])
    first, second = tokens(Rollout(**record))
    assert first.classes == "l3 u3 e4 g2 v1"
    assert first.title == (
        "token 0, id 5, logprob -0.3, ratio 1.3, entropy 0.9, advantage 0.5, version 7"
    )
    assert second.classes == "said masked"
    assert second.title == "token 1, id 6, written by the environment, not learned from"
    assert second.text == "↵\n"


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        ({"ratios": [1.0], "advantage": 0.0}, "l0 e4 v0"),
        ({"ratios": [0.0], "advantage": -2.0}, "l0 d4 e4 b4 v0"),
        ({"token_advantages": [-0.1]}, "l0 u3 e4 b1 v0"),
        ({"ratios": [], "entropies": [], "advantage": None}, "l0 v0"),
    ],
)
def test_a_token_has_a_colour_for_each_figure_that_is_known_of_it(fields, classes):
    assert tokens(Rollout(**rollout(1, 3, **fields)))[0].classes == classes


def test_what_cannot_be_seen_is_shown():
    assert visible("a\x00\x1b[1m\u202eb\n") == "a␀␛[1m\\u{202e}b\n"


def test_a_chart_keeps_peaks_and_ends_and_leaves_out_what_is_no_number():
    points = [(float(x), float(x == 700)) for x in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 322
    assert (700.0, 1.0) in kept
    assert kept == sorted(kept)
    svg = chart([Series("a<b", [(1, 2.0), (2, None), (3, float("nan")), (4, 5.0)])], bound=6.0)
    assert "a&lt;b" in svg
    assert "a<b" not in svg
    assert 'class="bound"' in svg
    assert svg.count("points=") == 1
    assert "nothing yet" in chart([Series("a", [(1, None)])])


def test_ticks_are_round_and_enclose_the_values():
    assert nice_ticks(0.0, 1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    for low, high in ((3.0, 3.0), (0.0, 0.0), (-7.3, 1e6), (1e-9, 2e-9)):
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low <= high <= ticks[-1] + 1e-15
        assert 2 <= len(ticks) <= 8


def test_axes_of_constants_begin_at_0_and_rounding_is_no_negative_share():
    assert nice_ticks(0.0, 0.0)[0] == 0.0
    assert nice_ticks(3.0, 3.0)[0] == 0.0
    assert nice_ticks(-3e-8, 0.0) == nice_ticks(-3e-8, -1e-8) == nice_ticks(0.0, 0.0)
    assert nice_ticks(-3e-8, 0.5)[0] == 0.0
    assert nice_ticks(2e-7, 5e-7)[-1] == pytest.approx(5e-7), "a learning rate may be this small"
    assert short(-0.0) == "0"


def test_a_constant_with_errors_of_rounding_has_the_axis_of_a_constant():
    rounded = 0.7, 0.7 + 1e-16
    assert nice_ticks(*rounded)[0] == 0.0
    assert nice_ticks(-3.0, -3.0 + 1e-9)[-1] == 0.0
    smooth = smoothed([(x, 0.0014) for x in range(12)], 0.6)
    assert len({y for _, y in smooth}) > 1
    assert "<polyline" in chart([Series("a", smooth)])


def test_the_marks_of_an_axis_differ_and_thousands_are_whole():
    svg = chart([Series("a", [(8, 0.99991), (82090, 0.99995)])])
    marks = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert len(set(marks)) == len(marks)
    assert marks[-1] == "82090"


def test_a_log_axis_has_powers_of_ten_and_leaves_out_what_is_not_positive():
    assert log_ticks(0.003, 40.0) == [0.001, 0.1, 10.0, 1000.0]
    assert log_ticks(1.0, 1.0) == [1.0, 10.0]
    svg = chart([Series("a", [(0, 0.0), (1, 0.01), (2, 10.0)])], is_log=True)
    (points,) = re.findall(r'points="([^"]*)"', svg)
    assert len(points.split()) == 2
    negative = [Series("a", [(0, -1.0), (1, 0.0)])]
    assert chart(negative, is_log=True) == chart(negative)


def test_smoothing_has_no_bias_to_the_beginning_and_forgets_by_its_weight():
    constant = [(x, 5.0) for x in range(4)]
    assert smoothed(constant, 0.9) == [(x, pytest.approx(5.0)) for x in range(4)]
    points = [(0, 1.0), (1, None), (2, 3.0)]
    assert smoothed(points, 0.5) == [(0, 1.0), (2, pytest.approx((0.25 * 1 + 0.5 * 3) / 0.75))]
    assert smoothed(points, 0.0) == [(0, 1.0), (2, 3.0)]


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (0.98051, "0.981"), (12.345, "12.3"), (-10321.7, "-10,322"), (2e-7, "2e-07")],
)
def test_numbers_are_short_and_large_ones_are_whole(value, written):
    assert number(value) == written
