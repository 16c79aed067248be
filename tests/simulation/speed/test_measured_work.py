"""The work of a run is read from its records, and predicts runs with other schedules."""

import dataclasses
import json
import random

import numpy as np
import pytest

from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import WORK_KINDS, of_kind
from rl_sync.settings.records import ConfigError
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.speed.judge_pool import JudgePool
from rl_sync.simulation.speed.measured_work import read_work
from rl_sync.simulation.speed.prediction import predict, simulate
from rl_sync.simulation.speed.speed_plan import plan_of
from rl_sync.simulation.speed.work_fits import (
    DoneWork,
    MeasuredRollout,
    Occupation,
    fit_decoding,
    fit_shared_cores,
)
from rl_sync.simulation.speed.workload import Samples, SharedCores
from rl_sync.workdir import Workdir
from tests.records.simulated_runs import write_spans
from tests.simulation.speed.recorded_runs import SLOTS, record, run_settings, true_work


def test_a_run_gives_back_the_work_that_it_was_made_of(tmp_path):
    settings, work = run_settings(), true_work()
    record(tmp_path, settings, work)
    found = read_work(str(tmp_path), settings, None)
    assert found.steps == 39
    assert not found.in_parts
    assert found.work.train.mean == pytest.approx(work.train.mean, rel=0.1)
    assert found.work.decoding.step_secs == pytest.approx(0.002, rel=0.05)
    assert found.work.decoding.row_secs == pytest.approx(0.0004, rel=0.05)
    assert found.work.decoding.prefill_secs == pytest.approx(0.01)
    assert found.work.layout.mean == pytest.approx(0.02)
    assert found.work.insert.mean == pytest.approx(0.003)
    assert found.work.judge.mean == pytest.approx(0.15, rel=0.2)
    assert found.work.evaluate.mean == pytest.approx(2.0)
    assert found.work.snapshot.mean == pytest.approx(0.5)
    times = found.work.transfers["checkpoint"]
    assert times.publish.mean == pytest.approx(0.25, rel=0.1)
    assert times.pull.mean == pytest.approx(0.1)
    mean = np.mean([np.mean(group) for group in found.work.lengths])
    assert mean == pytest.approx(np.mean([np.mean(group) for group in work.lengths]), rel=0.05)
    assert found.assumed == ("collective", "server")
    assert found.work.shared is None


def test_waits_for_environments_are_no_decoding(tmp_path):
    settings = run_settings()
    record(tmp_path, settings, true_work(waiting=Samples.of(0.5, 1.0)))
    found = read_work(str(tmp_path), settings, None).work
    assert found.waiting.mean == pytest.approx(0.75, rel=0.1)
    assert found.decoding.step_secs == pytest.approx(0.002, rel=0.05)
    assert found.decoding.row_secs == pytest.approx(0.0004, rel=0.05)


def test_an_explorer_uses_its_cores_while_it_does_not_wait(tmp_path):
    spans = spans_with_cpu((1.5, 1.5), (0.5, 0.5), beside=0.2)
    for span in of_kind(spans, SpanKind.ROLLOUT):
        span.attributes["engine"]["waiting_secs"] = 0.75 * span.duration_secs
    write_spans(tmp_path, spans)
    shared = read_work(str(tmp_path), run_settings(), 2.0).work.shared
    assert (shared.trainer, shared.explorer) == pytest.approx((1.5, 4 * 0.5), rel=0.05)


@pytest.mark.gate
@pytest.mark.parametrize("shared", [None, SharedCores(2.0, 1.8, 1.4)])
def test_a_run_in_one_mode_predicts_the_others(tmp_path, shared):
    settings, work = run_settings(), true_work(shared)
    record(tmp_path, settings, work)
    found = read_work(str(tmp_path), settings, 2.0 if shared else None).work
    for mode, sync in (
        ("synchronous", {}),
        ("one_step_off_policy", {}),
        ("synchronous", {"interval": 4}),
        ("asynchronous", {"max_staleness": 4}),
        ("multi_explorer", {"max_staleness": 3}),
    ):
        plan = plan_of(run_settings(mode, **sync))
        expected, predicted = predict(plan, work, (1, 2, 3)), predict(plan, found, (4, 5, 6))
        assert predicted.steps_an_hour == pytest.approx(expected.steps_an_hour, rel=0.1)
        assert abs(predicted.mean_staleness - expected.mean_staleness) < 0.2


def test_time_alone_is_the_part_of_the_cores_that_a_span_had():
    spans = [
        Span("trainer", SpanKind.TRAIN, 0.0, 4.0),
        Span("explorer1", SpanKind.ROLLOUT, 1.0, 3.0),
        Span("explorer2", SpanKind.ROLLOUT, 2.0, 6.0),
    ]
    shared = SharedCores(2.0, 2.0, 2.0)
    occupation = Occupation(spans)
    assert occupation.alone_secs(spans[0], shared) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 2)
    assert occupation.alone_secs(spans[2], shared) == pytest.approx(1 / 3 + 1 / 2 + 2)
    assert occupation.alone_secs(spans[0], None) == 4.0


def test_a_slow_down_is_found_where_roles_overlap_and_nowhere_else(tmp_path):
    least = SharedCores(2.0, 1.0, 1.0)
    for true, expected in ((SharedCores(2.0, 2.0, 2.0), 2.0), (None, 1.0)):
        spans = simulate(plan_of(run_settings()), true_work(true))
        trained = [DoneWork(span, (1.0,)) for span in of_kind(spans, SpanKind.TRAIN)]
        rollouts = [
            DoneWork(span, (span.attributes["engine"]["steps"], span.attributes["tokens"]))
            for span in of_kind(spans, SpanKind.ROLLOUT)
        ]
        found = fit_shared_cores(least, [trained, rollouts], spans)
        assert found.trainer == found.explorer == pytest.approx(expected, rel=0.2)


def test_decoding_is_fitted_to_steps_and_tokens():
    source = random.Random(1)
    work = [(source.randint(50, 100), source.randint(500, 1500)) for _ in range(20)]
    rollouts = [MeasuredRollout(0.02 * s + 0.001 * t, s, t) for s, t in work]
    found = fit_decoding(rollouts, 0.5)
    assert found[:3] == pytest.approx((0.02, 0.001, 0.5))
    assert found.noise.values == pytest.approx([1.0] * 20)
    (one,) = fit_decoding([MeasuredRollout(4.0, 100, 1000)], 0.0).noise.values
    assert one == 1.0


def test_older_records_without_decode_steps_are_enough(tmp_path):
    settings, work = run_settings(), true_work()
    spans = simulate(plan_of(settings), work)
    spans = [
        dataclasses.replace(s, attributes={k: v for k, v in s.attributes.items() if k != "engine"})
        for s in spans
    ]
    write_spans(tmp_path, spans)
    found = read_work(str(tmp_path), settings, None).work
    tokens = sum(found.lengths[0]) * 12
    secs = found.decoding.secs(tokens / SLOTS, tokens)
    rollouts = of_kind(spans, SpanKind.ROLLOUT)
    assert secs == pytest.approx(np.mean([s.duration_secs for s in rollouts]), rel=0.1)


def test_compilation_and_first_steps_do_not_count(tmp_path):
    settings, work = run_settings(), true_work()
    spans = simulate(plan_of(settings), work)
    slow = max(of_kind(spans, SpanKind.TRAIN), key=lambda span: span.duration_secs)
    compiled = Span("trainer", SpanKind.COMPILE, slow.start_secs, slow.end_secs)
    write_spans(tmp_path, [*spans, compiled])
    found = read_work(str(tmp_path), settings, None)
    assert max(found.work.train.values) < slow.duration_secs
    assert found.steps < 39


def test_cpu_time_says_how_many_cores_a_role_uses(tmp_path):
    settings = run_settings("synchronous")
    record(tmp_path, settings, true_work())
    spans = simulate(plan_of(settings), true_work())
    for role, cores in (("trainer", 1.5), ("explorer1", 0.7)):
        writer = JsonLinesWriter(Workdir(tmp_path).usage / f"{role}.jsonl")
        own = [s for s in spans if s.role == role and s.kind in WORK_KINDS]
        for at in np.arange(0.0, max(s.end_secs for s in spans), 5.0):
            busy = sum(max(0.0, min(s.end_secs, at) - s.start_secs) for s in own)
            writer.write({"time": at, "cpu_secs": cores * busy, "memory_bytes": 0})
        writer.close()
    shared = read_work(str(tmp_path), settings, 2.0).work.shared
    assert shared.trainer == pytest.approx(1.5, rel=0.05)
    assert shared.explorer == pytest.approx(0.7, rel=0.05)


@pytest.mark.parametrize(
    ("mode", "least", "most"), [("synchronous", 0, 0), ("asynchronous", 0.5, 1)]
)
def test_a_run_says_how_much_of_its_work_was_beside_other_work(tmp_path, mode, least, most):
    settings = run_settings(mode)
    record(tmp_path, settings, true_work(SharedCores(2.0, 1.8, 1.4)))
    assert least <= read_work(str(tmp_path), settings, 2.0).overlapped <= most
    assert read_work(str(tmp_path), settings, None).overlapped == 0


def spans_with_cpu(trainer, explorer, beside):
    """Spans of a trainer that trains while an explorer works, and of its time alone.

    Args:
      trainer, explorer: cores that each uses: alone, and beside the other.
      beside: share of the rollouts beside which the trainer works.
    """
    spans = []
    for step in range(1, 21):
        at = 10.0 * step
        share = beside + 0.1 * (step % 2)
        cpu = 4.0 * (share * explorer[1] + (1 - share) * explorer[0])
        more = {"tokens": 1000, "leases": [step], "engine": {"steps": 100}, "cpu_secs": cpu}
        spans.append(Span("explorer1", SpanKind.ROLLOUT, at, at + 4.0, {"step": step, **more}))
        train = {"step": step, "leases": [step], "tokens": 1000, "versions": [0], "dropped": []}
        end = at + 4.0 * share
        used = trainer[1] * (end - at)
        spans.append(Span("trainer", SpanKind.TRAIN, at, end, {**train, "cpu_secs": used}))
    return spans


def test_what_a_role_loses_beside_others_says_what_these_lose(tmp_path):
    write_spans(tmp_path, spans_with_cpu((None, 1.2), (1.4, 1.0), beside=0.5))
    shared = read_work(str(tmp_path), run_settings(), 2.0).work.shared
    assert shared.explorer == pytest.approx(1.4, rel=0.05)
    assert shared.trainer == pytest.approx(1.2 * 1.4, rel=0.05)


def test_where_no_role_is_ever_alone_and_no_core_is_free_one_would_use_all(tmp_path):
    write_spans(tmp_path, spans_with_cpu((None, 1.1), (0.9, 0.9), beside=0.9))
    shared = read_work(str(tmp_path), run_settings(), 2.0).work.shared
    assert (shared.trainer, shared.explorer) == pytest.approx((2.0, 2.0 * 0.9 / 1.1), rel=0.05)


def test_workers_that_are_all_busy_make_groups_wait(tmp_path):
    queue, ended = EventQueue(), []
    pool = JudgePool(queue, 2)
    for name in "ab":
        pool.judge([1.0, 1.0, 1.0], lambda name=name: ended.append((name, queue.now_secs)))
    while queue.step():
        pass
    assert ended == [("a", 2.0), ("b", 3.0)]


def test_a_run_of_few_steps_is_refused_in_one_line(tmp_path):
    settings = run_settings(steps=3)
    record(tmp_path, settings, true_work())
    with pytest.raises(ConfigError, match="2 trainer steps and") as refused:
        read_work(str(tmp_path), settings, None)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="is not the work directory"):
        read_work(str(tmp_path / "none"), settings, None)


def test_dropped_groups_count_as_replaced(tmp_path):
    settings = run_settings()
    record(tmp_path, settings, true_work())
    ledger = [
        {"event": "leased", "leases": [{"lease_id": i} for i in range(10)]},
        {"event": "dropped", "reason": "no spread", "leases": [{"lease_id": 3}, {"lease_id": 4}]},
        {"event": "dropped", "reason": "too stale", "leases": [{"lease_id": 5}]},
    ]
    Workdir(tmp_path).ledger.write_text("".join(json.dumps(one) + "\n" for one in ledger))
    assert read_work(str(tmp_path), settings, None).work.replaced == pytest.approx(0.2)
