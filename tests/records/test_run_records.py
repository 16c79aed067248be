"""The reader of a work directory: a run that grows, is resumed, is silent."""

import pytest
import regex

from rl_sync.records import flow as flow_records
from rl_sync.records.flow import Flow
from rl_sync.records.rollouts.record_parts import part_name
from rl_sync.records.rollouts.rollout_records import RolloutFilter
from rl_sync.records.run_records import RunRecords, open_runs
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
    assert [line["step"] for line in run.metrics.lines] == [1, 2, 3, 4, 5]
    assert run.flow.now.trained == 10
    assert run.rollouts.count == 20


def test_steps_before_a_resumption_are_void(run, tmp_path):
    at = Workdir(tmp_path / "run")
    for path in (at.metrics, at.ledger, at.consumed):
        append(path, {"time": 0.0, "event": "resumed", "resumed_at": 2})
    append(at.metrics, metrics(3, reward_mean=0.9))
    run.refresh()
    assert [line["step"] for line in run.metrics.lines] == [1, 2, 3]
    assert run.metrics.lines[-1]["reward_mean"] == 0.9
    assert sorted(run.flow.staleness) == [1, 2]
    append(at.ledger, ledger(3, "dropped", [6, 7, 8, 9], "resumed"))
    run.refresh()
    assert (run.flow.now.trained, run.flow.now.buffered) == (4, 0)
    assert run.flow.dropped == {"resumed": 4}


def test_the_time_between_two_attempts_is_not_the_run_s(tmp_path):
    at, kind = Workdir(tmp_path), {"kind": "train"}
    trainer, explorer = kind | {"role": "trainer"}, kind | {"role": "explorer1"}
    append(at.spans_of("explorer1"), explorer | {"start": 101.0, "end": 112.0})
    append(
        at.spans_of("trainer"),
        trainer | {"start": 100.0, "end": 110.0},
        {"resumed_at": 1, "began": 3000.0},
        trainer | {"start": 3001.0, "end": 3010.0},
        {"resumed_at": 2, "began": 3012.0},  # The trainer alone was started again.
        trainer | {"start": 3013.0, "end": 3020.0},
    )
    append(at.spans_of("explorer1"), explorer | {"start": 3002.0, "end": 3030.0})
    (run,) = open_runs([tmp_path])
    run.read()
    assert run.secs == 12 + 30
    assert [run.elapsed(at) for at in (105.0, 112.0, 1112.0, 3000.0, 3001.0)] == [5, 12, 12, 12, 13]


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
    assert run.staleness_bound == 2


def test_alarms_and_restarts_are_told(run, tmp_path):
    at = Workdir(tmp_path / "run")
    append(at.metrics, *(metrics(step, reward_max=0.0) for step in range(5, 8)))
    append(at.restarts, {"role": "explorer1", "time": 0.0})
    run.refresh()
    assert [one.alarm.name for one in run.periods] == ["no reward", "restarts"]


def test_a_fall_of_accuracy_is_told_when_its_evaluation_is_written(run, tmp_path):
    at = Workdir(tmp_path / "run").metrics
    before = [one.alarm.name for one in run.periods]
    for step, middle in ((4, 0.75), (5, 0.12)):
        values = {"accuracy": middle, "accuracy_low": middle - 0.05, "accuracy_high": middle + 0.05}
        append(at, {"phase": "evaluation", "step": step, "time": 9.0, "problems": 300, **values})
    run.refresh()
    last = run.periods[-1]
    assert [one.alarm.name for one in run.periods] == [*before, "accuracy fell"]
    assert (last.first_step, last.last_step) == (5, run.last_step)


@pytest.mark.parametrize(
    ("selection", "order", "found"),
    [
        ({"first_step": 2, "last_step": 2}, "reward", [(4, 1), (5, 1), (4, 0), (5, 0)]),
        ({"lease": 4}, "-step", [(4, 0), (4, 1)]),
        ({"prompt_id": 9, "least": 0.5}, "-step", [(9, 0)]),
        ({"greatest": 0.5, "first_step": 4}, "step", [(8, 1), (9, 1)]),
        ({"pattern": regex.compile(r"8\+1")}, "-reward", [(8, 0), (8, 1)]),
    ],
)
def test_completions_are_filtered_and_sorted(run, selection, order, found):
    rows = run.rollouts.find(RolloutFilter(**selection), order).rows
    assert [(row.lease, row.sample) for row in rows] == found


def test_unjudged_completions_come_last_and_fit_no_bound(run, tmp_path):
    path = Workdir(tmp_path / "run").rollouts / part_name("step", 1)
    append(path, rollout(5, 10, reward=None))
    run.refresh()
    for order in ("reward", "-reward"):
        assert run.rollouts.find(RolloutFilter(), order).rows[-1].reward is None
    assert len(run.rollouts.find(RolloutFilter(greatest=9.0)).rows) == 16


def test_records_that_a_resumed_run_removed_are_forgotten(run, tmp_path):
    folder = Workdir(tmp_path / "run").rollouts
    (row, *_) = run.rollouts.find(RolloutFilter()).rows
    (folder / part_name("step", 1)).write_bytes(b"")
    assert run.rollouts.whole(row) is None
    run.refresh()
    assert run.rollouts.count == 0


def test_spans_that_are_cut_to_a_summary_give_the_same_summary_and_account(run, tmp_path):
    small = RunRecords(tmp_path / "run", whole_spans=False)
    small.read(rollouts=False)
    assert small.summary == run.summary
    assert small.summary.mean_staleness > 0
    assert small.tokens == run.tokens
    assert small.device_time == run.device_time
    kept = [span for of_role in small.spans.by_role.values() for span in of_role]
    with_leases = {span.kind for span in kept if span.leases}
    assert with_leases == {SpanKind.ROLLOUT, SpanKind.TRAIN}


def test_moments_of_a_long_run_are_thinned_and_sums_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(flow_records, "_MOST_MOMENTS", 8)
    at = Workdir(tmp_path)
    for lease in range(30):
        append(at.ledger, ledger(lease, "leased", [lease]), ledger(lease, "dropped", [lease], "x"))
    found = Flow(tmp_path)
    while found.refresh():
        pass
    assert len(found.moments) <= 8
    assert (found.moments[0].generating, found.now.dropped) == (1, 30)
    assert (found.leased, dict(found.dropped)) == (30, {"x": 30})


def test_steps_that_are_taken_again_are_not_counted_twice(tmp_path):
    at = Workdir(tmp_path)
    for step in (1, 2, 3):
        leases = [2 * step, 2 * step + 1]
        append(at.ledger, *(ledger(step, one, leases) for one in ("leased", "buffered", "trained")))
    append(at.ledger, ledger(3, "trained", [2]))  # It was sampled again.
    append(at.ledger, {"time": 9.0, "event": "resumed", "resumed_at": 1})
    append(at.ledger, ledger(9, "dropped", [4, 5, 6, 7], "not trained when the run went on"))
    found = Flow(tmp_path)
    while found.refresh():
        pass
    assert found.now[1:] == (0, 1, 2, 4), "a group of step 1 awaits its second use"
    fates = [found.fates[one].state for one in found.fate.values[2:8]]
    assert fates == ["trained", "trained", "dropped", "dropped", "dropped", "dropped"]


def test_leases_that_no_run_has_are_left_out(tmp_path):
    append(Workdir(tmp_path).ledger, ledger(1, "leased", [-1, 3, 10**15]))
    found = Flow(tmp_path)
    found.refresh()
    assert (found.leased, len(found.fate.values)) == (1, 4)
