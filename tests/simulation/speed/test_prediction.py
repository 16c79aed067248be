"""Simulated runs keep the schedule's rules, and take the time that their parts take."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.records.buffer_level import fill_level
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import of_kind, staleness, summarize
from rl_sync.role_names import TRAINER
from rl_sync.simulation.speed.closed_forms import closed_form
from rl_sync.simulation.speed.prediction import (
    figures_of,
    predict,
    predict_with_tokens,
    simulate,
    simulated,
    step_secs,
    with_steps,
)
from rl_sync.simulation.speed.speed_plan import plan_of
from rl_sync.simulation.speed.workload import Decoding, Samples, SharedCores
from tests.simulation.speed.plans import GROUPS, plan_with, work_with
from tests.simulation.speed.recorded_runs import run_settings

pytestmark = pytest.mark.gate

UNEVEN = ((10, 400), (200, 300), (20, 1000), (50, 60))


def trained(spans):
    return of_kind(spans, SpanKind.TRAIN)


def test_the_figures_of_a_run_by_hand():
    """Two groups lie in the buffer for 4 s, one for 4 s, none for 2 s: 12 / 10 on average."""
    spans = [
        Span("explorer1", SpanKind.ROLLOUT, 0, 10, {"step": 1, "version": 0, "leases": [1, 2]}),
        Span("explorer1", SpanKind.INSERT, 10, 10, {"leases": [1, 2]}),
        Span("trainer", SpanKind.TRAIN, 14, 16, {"step": 1, "leases": [1], "versions": [0]}),
        Span("trainer", SpanKind.TRAIN, 18, 20, {"step": 2, "leases": [2], "versions": [0]}),
    ]
    found = figures_of(spans)
    assert found.buffered == pytest.approx(1.2)
    assert (found.steps_an_hour, found.secs) == (900, 20)
    assert (found.mean_staleness, found.max_staleness) == (0.5, 1)
    assert (found.explorer_idle, found.trainer_idle) == (0.5, pytest.approx(0.8))


def test_roles_that_take_turns_on_one_device_are_simulated():
    plain = run_settings("synchronous")
    shared = dataclasses.replace(plain.launch, colocate=True, share_devices=True)
    lora = dataclasses.replace(plain.model.lora, rank=2)
    model = dataclasses.replace(plain.model, lora=lora)
    turns = dataclasses.replace(plain, launch=shared, model=model)
    assert turns.takes_turns
    assert turns.merges_in_place
    work = work_with(lengths=UNEVEN)
    assert len(trained(simulate(plan_of(turns), work))) == plain.trainer.steps


def test_every_step_trains_on_a_batch_of_different_groups():
    for mode in ("synchronous", "one_step_off_policy", "asynchronous"):
        spans = simulate(plan_with(mode), work_with(lengths=UNEVEN))
        batches = [span.leases for span in trained(spans)]
        assert [len(batch) for batch in batches] == [GROUPS] * 24
        assert len({*itertools.chain(*batches)}) == 24 * GROUPS
        assert [span.step for span in trained(spans)] == [*range(1, 25)]


def test_the_account_of_tokens_closes_and_knows_groups_that_are_generated_anew():
    """Of two groups one is useless, but the last of eight attempts is always trained on.

    A trained group costs 1 + 1/2 + 1/4 + … + 1/2⁷ groups.
    """
    work = work_with(lengths=((10, 20),), replaced=0.5)
    plan = with_steps(plan_with("synchronous", algorithm={"max_attempts": 8}), 60)
    found = simulated(plan, work).tokens
    assert found.trained == 60 * GROUPS * 30
    assert found.unrecorded == found.buffered == found.in_flight == 0
    assert found.per_trained == pytest.approx(2 - 1 / 2**7, rel=0.15)
    assert {*found.dropped} == {"no spread"}


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_groups_that_are_not_selected_are_tokens_too(mode):
    """Six groups of 30 tokens are generated for each step, which trains on four of them."""
    plan = plan_with(mode, algorithm={"over_sampling": 1.5})
    runs = [simulated(plan, work_with(lengths=((10, 20),)), seed).tokens for seed in (0, 1)]
    for one in runs:
        assert one.describe() == (
            "1.50 tokens generated for each trained token: 1.00 trained, 0.50 over-sampled"
        )
    both = predict_with_tokens(plan, work_with(lengths=((10, 20),)), (0, 1))[1]
    assert both.places == {"trained": 2 * 24 * 4 * 30, "over-sampled": 2 * 24 * 2 * 30}


def test_exact_schedules_give_the_staleness_of_their_formula():
    for interval, offset in ((1, 0), (1, 1), (4, 0), (2, 3)):
        plan = plan_with("custom", sync={"interval": interval, "offset": offset}, transfer="server")
        schedule = plan.schedule
        for span in trained(simulate(plan, work_with(lengths=UNEVEN))):
            assert span.attributes["versions"] == [schedule.exact_version(span.step)]


def test_an_explorer_that_is_faster_runs_up_to_the_bound():
    plan = plan_with("asynchronous", sync={"max_staleness": 3})
    ages = staleness(simulate(plan, work_with(rollout=0.1, train=1.0, pull=0.0)))
    assert (max(ages), ages[-1]) == (3, 3)
    fresh = staleness(simulate(plan, work_with(rollout=3.0, train=0.1, pull=0.0)))
    assert {*fresh[2 * GROUPS :]} == {1}  # A rollout begins before the last batch is trained on.


def test_explorers_of_several_leases_make_more_groups():
    work = work_with(rollout=4.0, train=0.5, pull=0.0)
    sync = {"max_staleness": 6}
    one = predict(plan_with("asynchronous", sync=sync), work)
    four = predict(plan_with("multi_explorer", explorers=4, sync=sync), work)
    assert four.steps_an_hour == pytest.approx(one.steps_an_hour, rel=0.05)  # One group each.
    sequential = plan_with("asynchronous", sync=sync, rollout={"slots": 1})
    assert predict(sequential, work).steps_an_hour == pytest.approx(one.steps_an_hour / 4, rel=0.1)


def test_a_rollout_ends_with_its_longest_completion():
    spans = simulate(plan_with(rows=2), work_with(lengths=((10, 500), (1000, 20))))
    longest = max(span.duration_secs for span in of_kind(spans, SpanKind.ROLLOUT))
    assert longest == pytest.approx(2.0)


@pytest.mark.parametrize("groups", [1, GROUPS])
def test_a_rollout_waits_for_environments_once_however_many_episodes_it_has(groups):
    work = work_with(waiting=Samples.of(0.75))
    spans = simulate(plan_with(groups=groups), work)
    rollouts = of_kind(spans, SpanKind.ROLLOUT)
    assert [span.duration_secs for span in rollouts] == pytest.approx([2.75] * 24)
    assert rollouts[0].attributes["engine"]["waiting_secs"] == 0.75
    assert closed_form(plan_with(groups=groups), work) == pytest.approx(
        2.75 + 1.0 * groups / GROUPS + 0.5
    )


def test_waits_for_environments_take_no_cores_from_a_train_step():
    shared = SharedCores(2.0, 2.0, 2.0)
    works = [work_with(rollout=2.0, shared=shared)]
    works.append(work_with(rollout=1.0, waiting=Samples.of(1.0), shared=shared))
    decodes, waits = (
        [span.duration_secs for span in trained(simulate(plan_with("one_step_off_policy"), work))]
        for work in works
    )
    assert max(waits[2:-2]) < 1.2
    assert min(decodes[2:-2]) > 1.5


def test_with_streaming_other_episodes_are_decoded_meanwhile():
    plan = plan_with("asynchronous", rollout={"streaming": True})
    spans = [simulate(plan, work_with(waiting=Samples.of(secs))) for secs in (0.0, 5.0)]
    assert spans[0] == spans[1]


def test_rows_and_prefills_add_to_a_rollout():
    decoding = Decoding(step_secs=0.001, row_secs=0.002, prefill_secs=0.5)
    spans = simulate(plan_with(rows=2), work_with(lengths=((100, 50),), decoding=decoding))
    rollout = of_kind(spans, SpanKind.ROLLOUT)[0]
    expected = 100 * 0.001 + GROUPS * 150 * 0.002 + GROUPS * 0.5
    assert rollout.duration_secs == pytest.approx(expected)
    assert rollout.attributes["tokens"] == GROUPS * 150


def test_shared_cores_slow_down_what_overlaps_and_nothing_else():
    work = work_with(rollout=1.0, train=1.0, pull=0.0)
    shared = dataclasses.replace(work, shared=SharedCores(2.0, trainer=2.0, explorer=2.0))
    apart, together = (predict(plan_with("one_step_off_policy"), one) for one in (work, shared))
    assert together.steps_an_hour == pytest.approx(apart.steps_an_hour / 2, rel=0.05)
    apart, together = (predict(plan_with("synchronous"), one) for one in (work, shared))
    assert together.steps_an_hour == pytest.approx(apart.steps_an_hour)


def test_judging_delays_only_those_who_wait_for_it():
    slow = work_with(rollout=2.0, train=1.0, pull=0.0, judge=Samples.of(6.0))
    exact = predict(plan_with("synchronous"), slow)
    assert 3600 / exact.steps_an_hour == pytest.approx(9.0)
    free = predict(plan_with("asynchronous", sync={"max_staleness": 8}, steps=40), slow)
    assert 3600 / free.steps_an_hour == pytest.approx(2.0, rel=0.05)


def test_judges_have_room_for_some_rollouts_of_an_explorer():
    slow = work_with(rollout=1.0, train=0.1, pull=0.0, judge=Samples.of(10.0))
    plan = plan_with("asynchronous", sync={"max_staleness": 30}, steps=40)
    spans = simulate(plan, slow)
    assert 3600 / figures_of(spans).steps_an_hour == pytest.approx(2.5, rel=0.1)  # Four in 10 s.
    waits = of_kind(spans, SpanKind.WAIT, role="explorer1")
    assert any(span.attributes["reason"] == "judgements" for span in waits)


def test_rollouts_are_inserted_in_order_and_single_groups_as_they_are_judged():
    work = work_with(rollout=1.0, train=0.1, pull=0.0, judge=Samples.of(0.1, 3.0))
    plan = plan_with("asynchronous", sync={"max_staleness": 12})
    for one, in_order in ((plan, True), (dataclasses.replace(plan, in_parts=True), False)):
        inserted = [span.leases for span in of_kind(simulate(one, work), SpanKind.INSERT)]
        leases = [*itertools.chain(*inserted)]
        assert (leases == sorted(leases)) == in_order
        assert {*map(len, inserted)} == ({GROUPS} if in_order else {1})


def test_a_streaming_rollout_ends_after_as_many_groups_as_fill_the_slots():
    rollout = {"slots": 8, "streaming": True}
    plan = plan_with("asynchronous", sync={"max_staleness": 30}, rows=2, rollout=rollout)
    spans = simulate(plan, work_with(rollout=1.0, train=1000.0, lengths=((20, 30),)))
    before = [
        span
        for span in of_kind(spans, SpanKind.ROLLOUT)
        if span.end_secs < trained(spans)[0].end_secs
    ]
    assert len(before) > 10
    assert {span.version for span in before} == {0}


def test_a_step_takes_time_in_proportion_to_its_groups():
    work = dataclasses.replace(work_with(train=1.0), groups_per_step=2 * GROUPS)
    assert {span.duration_secs for span in trained(simulate(plan_with(), work))} == {0.5}


def test_a_trainer_of_a_joint_cluster_serves_explorers_after_every_step():
    sync = {"interval": 3, "max_staleness": 5}
    plan = plan_with("asynchronous", sync=sync, transfer="collective", steps=60)
    spans = simulate(plan, work_with(rollout=1.7, train=2.0, pull=0.1))
    waits = [
        span.duration_secs
        for span in of_kind(spans, SpanKind.WAIT, role="explorer1")
        if "version" in span.attributes
    ]
    assert 1.0 < max(waits) <= 2.1


def test_explorers_that_replace_groups_generate_more():
    screening = {"max_attempts": 10, "filter_zero_variance": True}
    plan = plan_with("synchronous", algorithm=screening)
    work = work_with(pull=0.0, train=0.0, replaced=0.5)
    more = predict(plan, work).secs / predict(plan, dataclasses.replace(work, replaced=0.0)).secs
    assert more > 1.5


def test_versions_travel_in_the_background_and_late_ones_are_skipped():
    work = work_with(rollout=0.1, train=0.1, pull=0.0, publish=1.0)
    plan = plan_with("asynchronous", sync={"max_staleness": 40}, steps=40)
    spans = simulate(plan, work)
    published = [span.version for span in of_kind(spans, *SYNC_KINDS, role=TRAINER)]
    assert published[-1] - published[-2] >= 5
    assert max(staleness(spans)) >= 8


def test_explorers_that_prefetch_do_not_wait_for_weights():
    work = work_with(rollout=1.0, train=0.2, pull=0.9)
    fetching, having = (
        predict(plan_with("asynchronous", sync={"max_staleness": 4, "delta": delta}), work)
        for delta in ("off", "on")
    )
    assert 3600 / fetching.steps_an_hour == pytest.approx(1.9, rel=0.05)
    assert 3600 / having.steps_an_hour == pytest.approx(1.0, rel=0.05)


def test_a_run_with_deltas_fetches_beside_as_its_settings_say():
    settings = run_settings("asynchronous", max_staleness=4, transfer="server")
    learning = dataclasses.replace(settings.optimizer, learning_rate=1e-6)
    model = dataclasses.replace(settings.model, dtype="bfloat16")
    small = dataclasses.replace(settings, optimizer=learning, model=model)
    assert [plan_of(one).prefetches for one in (small, settings)] == [True, False]


def test_explorers_that_pull_at_once_share_the_link():
    work = work_with(rollout=1.0, train=0.1, pull=0.5)
    sync = {"interval": 1, "max_staleness": 8}
    plan = plan_with("multi_explorer", explorers=4, sync=sync)
    own = predict(plan, work).steps_an_hour
    narrow = {name: one._replace(shares_link=True) for name, one in work.transfers.items()}
    assert predict(plan, dataclasses.replace(work, transfers=narrow)).steps_an_hour < 0.9 * own


def test_streaming_keeps_slots_full_where_leases_wait_for_the_longest():
    work = work_with(
        train=0.01, pull=0.0, lengths=((10, 10, 10, 200), (20, 20, 20, 20)),
        decoding=Decoding(step_secs=0.01),
    )  # fmt: skip
    sync = {"max_staleness": 12}
    plan, streaming = (
        plan_with(
            "asynchronous", sync=sync, steps=40, rows=4, rollout={"slots": 16, "streaming": streams}
        )
        for streams in (False, True)
    )
    leases, stream = predict(plan, work), predict(streaming, work)
    assert stream.steps_an_hour > 1.5 * leases.steps_an_hour
    assert stream.max_staleness <= 12


def test_a_budget_ends_rollouts_and_carries_groups_over():
    sync, budget = {"max_staleness": 8}, {"budget_tokens": 800}
    plan = plan_with("asynchronous", sync=sync, rows=2, rollout=budget)
    spans = simulate(plan, work_with(lengths=((10, 1000), (50, 60))))
    carried = [span.attributes["carried_over"] for span in of_kind(spans, SpanKind.ROLLOUT)]
    assert any(carried)
    assert max(staleness(spans)) <= 8


def test_explorers_evaluate_when_the_master_says_so():
    plan = plan_with("asynchronous", evaluation={"every_steps": 8})
    spans = simulate(plan, work_with(evaluate=Samples.of(3.0)))
    evaluated = [span.step for span in of_kind(spans, SpanKind.EVALUATION)]
    assert evaluated == [8, 16]


def test_the_trainer_evaluates_and_saves_between_steps():
    plan = plan_with("synchronous", evaluation={"every_steps": 8}, checkpoint={"every_steps": 6})
    work = work_with(evaluate=Samples.of(3.0), snapshot=Samples.of(1.0))
    spans = simulate(plan, work)
    assert [span.step for span in of_kind(spans, SpanKind.EVALUATION)] == [8, 16]
    assert [span.step for span in of_kind(spans, SpanKind.SNAPSHOT)] == [6, 12, 18]
    bare = simulate(plan_with("synchronous"), work)
    longer = summarize(spans).wall_secs - summarize(bare).wall_secs
    assert longer == pytest.approx(2 * (3.0 - 2.0))  # The rest is beside rollouts of two seconds.


def test_the_same_seed_gives_the_same_run():
    work = work_with(lengths=UNEVEN, train_samples=Samples.of(0.5, 1.5))
    plan = plan_with("multi_explorer", explorers=2)
    assert simulate(plan, work, 1) == simulate(plan, work, 1)
    assert simulate(plan, work, 1) != simulate(plan, work, 2)


def test_steps_with_compilation_do_not_count():
    spans = simulate(plan_with("synchronous"), work_with())
    span = trained(spans)[12]
    late = [
        dataclasses.replace(one, start_secs=one.start_secs + 50, end_secs=one.end_secs + 50)
        if one.start_secs >= span.start_secs
        else one
        for one in spans
    ]
    compiled = dataclasses.replace(
        span, kind=SpanKind.COMPILE, start_secs=span.start_secs, end_secs=span.start_secs + 50
    )
    assert step_secs([*late, compiled]) == pytest.approx(step_secs(spans))
    with pytest.raises(ValueError, match="recorded 1 trainer steps"):
        step_secs(simulate(with_steps(plan_with(), 1), work_with()))


@settings(deadline=None, max_examples=60)
@given(
    interval=st.integers(1, 3),
    offset=st.integers(0, 3),
    exact=st.booleans(),
    more=st.integers(0, 3),
    explorers=st.integers(1, 3),
    transfer=st.sampled_from(["collective", "checkpoint"]),
    streams=st.booleans(),
    rollout=st.floats(0.1, 10),
    train=st.floats(0.1, 10),
    shared=st.booleans(),
)
def test_any_schedule_keeps_its_bound_and_ends(
    interval, offset, exact, more, explorers, transfer, streams, rollout, train, shared
):
    sync = {"interval": interval, "pull": "exact" if exact else "latest"}
    sync |= {"offset": offset} if exact else {"max_staleness": interval - 1 + more}
    about = {"rollout": {"streaming": True, "slots": 8}} if streams and not exact else {}
    plan = plan_with(
        "custom", explorers=explorers, transfer=transfer, steps=8, rows=2, sync=sync, **about
    )
    cores = SharedCores(2.0, 1.5, 1.0) if shared else None
    work = work_with(rollout, train, 0.3, 0.2, lengths=UNEVEN, shared=cores)
    spans = simulate(plan, work)
    assert len(trained(spans)) == 8
    ages = staleness(spans)
    assert min(ages) >= 0
    assert max(ages) <= plan.schedule.staleness_bound
    for role in {span.role for span in spans}:
        busy = [s for s in spans if s.role == role and s.kind in (SpanKind.ROLLOUT, SpanKind.TRAIN)]
        assert all(a.end_secs <= b.start_secs + 1e-9 for a, b in itertools.pairwise(busy))
    assert all(level.groups >= 0 for level in fill_level(spans))
