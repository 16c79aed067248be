"""Steps are dispatched ahead, and reported in order, when they are really done."""

import dataclasses
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.rows.batching import Placed
from rl_sync.messages.events import BatchTrained
from rl_sync.messages.master_calls import Fail, Report, Trained
from rl_sync.messages.run_result import LogprobGap, RunResult
from rl_sync.ports.clock_port import SystemClock
from rl_sync.records.json_lines import RecordsError
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SpanKind, SpanRecorder
from rl_sync.records.summary import of_kind
from rl_sync.roles.trainer.steps_in_flight import StepsInFlight
from rl_sync.types import NO_LEASE, Group, TrainBatch
from rl_sync.workdir import Workdir
from tests.settings.changed import settings_with

COUNTS = ("skipped_updates", "skipped_at_end", "unjudged_updates")
SOURCE = np.array([[4, 5, 1, -1]])


class Computation:
    """A metric that is there when it is told to be, or fails."""

    def __init__(self):
        self.done, self.error = threading.Event(), None

    def __float__(self):
        assert self.done.wait(10)
        if self.error:
            raise self.error
        return 1.0


class Run:
    """The run of `StepsInFlight`: steps end when they are told to, and reports are recorded."""

    clock = SystemClock()

    def __init__(self, workdir):
        self.computations, self.events = [], []
        self.spans = SpanRecorder(Workdir(workdir).spans_of("trainer"), "trainer")
        self.settings = settings_with(
            optimizer__updates_per_batch=2,
            optimizer__max_skipped_updates=5,
            algorithm__logprob_gap_alarm=0.0,
        )
        self.alarms, self.left_out, self.kept = [], [], []
        self.skipped, self.failures, self.unjudged = {}, [], []
        self.facts, self.arrays = {}, {}
        self.recorded = []
        self.stepping = StepsInFlight(self, self, self, self.place, self, recorder=self)

    row_tokens = 4

    def placed(self, groups):
        return Placed(TrainBatch(groups, groups), SOURCE)

    def place(self, lay_out):
        return lay_out()

    def of(self, batch):
        def compiled(state, batch):
            self.computations.append(Computation())
            names = ("reward_mean", "staleness_mean", "staleness_max", "logprob_gap")
            skipped = dict.fromkeys(COUNTS, 0.0) | self.skipped
            metrics = dict.fromkeys(names, self.computations[-1]) | skipped | self.arrays
            return state + 1, metrics

        return compiled

    def tell(self, call):
        match call:
            case Fail(reason):
                self.failures.append(reason)
            case Trained(BatchTrained(step, lease_ids, left_out, kept), recorded=recorded):
                self.events.append(("trained", step, list(lease_ids)))
                self.asked = recorded
                self.left_out.append(left_out)
                self.kept.append(kept)
            case Report(RunResult(logprob_gap=LogprobGap() as gap)):
                self.alarms.append(gap)
            case Report(RunResult(skipped={"unjudged": found})):
                self.unjudged.append(found)

    def choose(self, groups):
        self.chosen = len(self.events)
        return list(enumerate(groups))

    def record(self, step, chosen, figures):
        leases = [group.lease_id for _, group in chosen.groups]
        self.recorded.append((step, leases, self.chosen, figures()))

    def write(self, step, groups):
        self.events.append(("consumed", step, [group.lease_id for group in groups]))


def _groups(step):
    mask = np.array([[False, True, True], [False, True, False]])
    versions = np.array([[-1, 3, 4], [-1, 3, -1]])
    return [Group(10 * step + i, 0, 0, 1, versions, mask, versions, versions, versions[:, 0])
            for i in range(2)]  # fmt: skip


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    for computation in run.computations:
        computation.done.set()


def test_a_step_is_dispatched_while_the_one_before_is_computed_and_reported_when_it_is_done(run):
    assert run.stepping.take(0, 1, _groups(1), []) == 1
    assert run.events == []
    second = threading.Thread(target=run.stepping.take, args=(1, 2, _groups(2), []))
    second.start()
    wait_for(lambda: len(run.computations) == 2)
    assert run.events == []
    run.computations[0].done.set()
    second.join(10)
    assert run.events == [("consumed", 1, [10, 11]), ("trained", 1, [10, 11])]
    run.computations[1].done.set()
    run.stepping.settle()
    assert [event[:2] for event in run.events[2:]] == [("consumed", 2), ("trained", 2)]


OF_TOKENS = {"token_ratios": jnp.ones((1, 4)), "token_entropies": jnp.zeros((1, 4))}


@pytest.mark.parametrize("arrays", [{"advantages": jnp.array([0.5, -0.5]), **OF_TOKENS}, {}])
def test_what_is_recorded_is_chosen_before_the_step_is_over_and_has_its_figures(run, arrays):
    run.arrays = arrays
    run.stepping.take(0, 1, _groups(1), [])
    wait_for(lambda: hasattr(run, "chosen"))
    assert run.recorded == run.events == []
    run.computations[0].done.set()
    run.stepping.settle()
    ((step, leases, events_before, figures),) = run.recorded
    assert (step, leases, events_before) == (1, [10, 11], 0)
    assert run.asked == [10, 11]
    assert figures.source is SOURCE
    assert figures.of_tokens.keys() == arrays.keys() - {"advantages"}
    if not arrays:
        assert figures.advantages is None
        return
    assert figures.advantages.tolist() == [0.5, -0.5]
    assert figures.of_tokens["token_ratios"].tolist() == [[1, 1, 1, 1]]


def test_the_span_of_a_step_lasts_until_it_is_done_and_begins_after_the_one_before(run, tmp_path):
    run.stepping.take(0, 1, _groups(1), [])
    second = threading.Thread(target=run.stepping.take, args=(1, 2, _groups(2), []))
    second.start()
    wait_for(lambda: run.spans.current is not None)
    assert run.spans.current.kind is SpanKind.TRAIN
    run.computations[0].done.set()
    wait_for(lambda: len(run.computations) == 2)
    run.computations[1].done.set()
    second.join(10)
    run.stepping.settle()
    run.spans.close()
    spans = read_spans(tmp_path)
    one, two = of_kind(spans, SpanKind.TRAIN)
    assert (one.step, two.step) == (1, 2)
    reported = of_kind(spans, SpanKind.REPORT)
    assert [span.step for span in reported] == [1, 2]
    assert reported[0].start_secs >= one.end_secs
    assert two.start_secs >= one.end_secs
    assert one.attributes["tokens"] == 6
    assert one.attributes["versions"] == [3, 4]


def test_a_step_that_fails_is_not_reported(run):
    run.stepping.take(0, 1, _groups(1), [])
    run.computations[0].error = RuntimeError("the device is gone")
    run.computations[0].done.set()
    with pytest.raises(RuntimeError, match="the device is gone"):
        run.stepping.settle()
    assert run.events == []


def test_what_a_step_leaves_out_is_reported_with_it_and_demonstrations_have_no_lease(run):
    groups = [*_groups(1), dataclasses.replace(_groups(1)[0], lease_id=NO_LEASE)]
    run.stepping.take(0, 1, groups, [17, 18], [11])
    run.computations[0].done.set()
    run.stepping.settle()
    assert (run.left_out, run.kept) == ([(17, 18)], [(11,)])
    assert run.events[1] == ("trained", 1, [10, 11])


def test_a_step_gets_its_demonstrations(run, tmp_path):
    batches = []
    run.of = lambda batch: batches.append(batch) or (lambda state, batch: (state, {}))
    stepping = StepsInFlight(run, run, run, run.place, run, lambda step: f"those of step {step}")
    stepping.take(0, 4, _groups(4), [])
    (batch,) = batches
    assert batch.demonstrations == "those of step 4"
    assert len(batch.rows) == 2


def test_logprobs_that_are_too_far_apart_give_an_alarm(run):
    run.settings = settings_with(algorithm__logprob_gap_alarm=0.5)
    for step in (4, 5):
        run.stepping.take(step, step, _groups(step), [])
        run.computations[-1].done.set()
        run.stepping.settle()
    assert run.alarms == [LogprobGap(4, steps, 1.0, 0.5) for steps in (1, 2)]


def test_logprobs_that_are_close_give_no_alarm(run):
    run.settings = settings_with(algorithm__logprob_gap_alarm=1.0)
    run.stepping.take(0, 1, _groups(1), [])
    run.computations[0].done.set()
    run.stepping.settle()
    assert run.alarms == []


def taken(run, step, skipped, at_end):
    """Takes a step of two updates, of which some were skipped."""
    run.skipped = {"skipped_updates": float(skipped), "skipped_at_end": float(at_end)}
    run.stepping.take(step, step, _groups(step), [])
    run.computations[-1].done.set()
    run.stepping.settle()


def test_a_row_of_skipped_updates_stops_the_run(run, caplog):
    for step, (skipped, at_end) in enumerate([(1, 0), (2, 2), (1, 1), (2, 2), (2, 2)], start=1):
        assert run.failures == []
        taken(run, step, skipped, at_end)
    (reason,) = run.failures
    assert reason.startswith(
        "5 updates in a row, from trainer step 3 to 5, had a loss or a gradient"
    )
    assert "optimizer.max_skipped_updates=5" in reason
    assert "a lower optimizer.learning_rate, which needs launch.resume_changed=true" in reason
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"Trainer step {n}" for n in (1, 2, 3)
    ]


def test_in_float16_a_row_of_skipped_updates_names_a_wider_dtype(run):
    changes = {"trainer__compute_dtype": "float16", "optimizer__max_skipped_updates": 2}
    run.settings = settings_with(optimizer__updates_per_batch=2, **changes)
    taken(run, 1, 2, 2)
    (reason,) = run.failures
    assert "or trainer.compute_dtype=float32, as float16 has no values beyond 65,504" in reason


def test_updates_that_are_taken_end_a_row_of_skipped_ones(run):
    for step, skipped in enumerate([2, 2, 0, 2, 2, 0], start=1):
        taken(run, step, skipped, skipped)
    assert run.failures == []


def test_a_run_whose_record_of_what_it_consumed_has_holes_is_stopped(run):
    def write(step, groups):
        raise RecordsError("consumed.jsonl cannot be written")

    run.write = write
    taken(run, 1, 0, 0)
    assert run.failures == ["consumed.jsonl cannot be written"]


def test_steps_in_whose_batch_nothing_was_judged_are_counted_and_said_once_a_row(run, caplog):
    for step, unjudged in enumerate([2, 2, 0, 1], start=1):
        run.skipped = {"unjudged_updates": float(unjudged)}
        run.stepping.take(0, step, _groups(step), [])
        run.computations[-1].done.set()
        run.stepping.settle()
    assert [tuple(one) for one in run.unjudged] == [(2, 1, 1), (4, 1, 2), (5, 1, 4)]
    said = [text for text in caplog.messages if "could be judged" in text]
    assert [text.partition(":")[0] for text in said] == ["Trainer step 1", "Trainer step 4"]
    assert run.failures == []
    assert run.facts["reward"] == 1.0


def test_a_step_of_which_nothing_was_judged_shows_no_reward(run):
    run.arrays = {"reward_mean": float("nan")}
    run.stepping.take(0, 1, _groups(1), [])
    run.computations[-1].done.set()
    run.stepping.settle()
    assert run.facts["step"] == 1
    assert run.facts["reward"] is None


def test_a_step_that_the_master_counts_already_is_neither_reported_nor_recorded(run, tmp_path):
    run.stepping.take(0, 1, _groups(1), [], again=True)
    run.computations[0].done.set()
    run.stepping.take(1, 2, _groups(2), [], logged=lambda: run.events.append("logged"))
    run.computations[1].done.set()
    run.stepping.settle()
    of_second = [10 * 2, 10 * 2 + 1]
    assert run.events == ["logged", ("consumed", 2, of_second), ("trained", 2, of_second)]
    run.spans.close()
    kinds = [span.kind for span in read_spans(tmp_path)]
    assert kinds == [SpanKind.TRAIN_AGAIN, SpanKind.TRAIN, SpanKind.REPORT]
