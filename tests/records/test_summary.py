"""Sums over spans, by hand and on simulated runs of every mode."""

import pytest

from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import (
    describe,
    of_kind,
    overlap_secs,
    rl_phase,
    staleness,
    summarize,
    summarize_role,
    uncovered,
    union,
    union_secs,
)
from tests.records.simulated_runs import MODES, TOKENS, simulate


def _span(start: float, end: float, kind=SpanKind.ROLLOUT, role="explorer1", **attributes) -> Span:
    return Span(role, kind, start, end, attributes)


def test_union_counts_time_once():
    assert union_secs([_span(0, 2), _span(1, 3), _span(5, 6), _span(5.2, 5.4)]) == 4.0
    assert union_secs([]) == 0.0


def test_overlap_counts_time_in_which_both_sides_are_open():
    a = [_span(0, 4), _span(2, 5), _span(10, 12)]
    b = [_span(1, 2), _span(4, 11)]
    assert overlap_secs(a, b) == 1 + 1 + 1
    assert overlap_secs(b, a) == 3.0
    assert overlap_secs(a, []) == 0.0


def test_what_of_a_wait_no_work_covers():
    wait = _span(2, 10, SpanKind.WAIT, reason="experiences")
    work = [_span(0, 3), _span(5, 6), _span(5.5, 7), _span(9, 12)]
    assert [(part.start_secs, part.end_secs) for part in uncovered(wait, union(work))] == [
        (3, 5),
        (7, 9),
    ]
    assert uncovered(wait, []) == [wait]
    assert uncovered(wait, [(0, 20)]) == []
    assert uncovered(wait, [(0, 1), (10, 11)]) == [wait]


def _hand_made_run() -> list[Span]:
    return [
        _span(0, 5, SpanKind.SFT, "trainer"),
        _span(10, 14, step=1, version=0, tokens=100, leases=[0, 1]),
        _span(14, 16, SpanKind.WAIT, reason="synchronization"),
        _span(16, 18, step=2, version=1, tokens=60, leases=[2, 3]),
        _span(9, 14, SpanKind.WAIT, "trainer", reason="experiences"),
        _span(
            14, 15, SpanKind.TRAIN, "trainer", step=1, leases=[0, 1], versions=[0], tokens=90
        ),
        _span(15, 16, SpanKind.SYNC_COLLECTIVE, "trainer", version=1),
        _span(
            17, 20, SpanKind.TRAIN, "trainer", step=2, leases=[1, 2], versions=[0, 1], tokens=80
        ),
        _span(20, 30, step=3, version=1, tokens=1000, leases=[4]),
    ]  # fmt: skip


def test_a_hand_made_run_sums_up_as_by_hand():
    summary = summarize(_hand_made_run())
    assert summary.wall_secs == 10.0
    assert (summary.rollout_secs, summary.train_secs, summary.overlap_secs) == (6.0, 4.0, 1.0)
    assert summary.wait_secs == {"experiences": 4.0, "synchronization": 2.0}
    assert (summary.rollout_tokens_per_sec, summary.trained_tokens_per_sec) == (16.0, 17.0)
    explorer, trainer = summary.role("explorer1"), summary.role("trainer")
    assert (explorer.busy_secs, explorer.sync_secs, explorer.idle_secs) == (6.0, 0.0, 4.0)
    assert (trainer.busy_secs, trainer.sync_secs, trainer.idle_secs) == (4.0, 1.0, 5.0)
    assert trainer.idle_share == summary.trainer_idle_share == 0.5
    assert summary.ideal_ratio == 0.6
    assert summary.idle_secs == 0.0
    assert (summary.mean_staleness, summary.max_staleness) == (0.25, 1)


def test_devices_are_idle_while_the_master_judges_and_no_role_computes():
    spans = [
        _span(0, 4, step=1, version=0, tokens=10, leases=[0]),
        _span(4, 7, SpanKind.SCORE, "master"),
        _span(3, 7, SpanKind.WAIT, "trainer", reason="experiences"),
        _span(7, 8, SpanKind.TRAIN, "trainer", step=1, leases=[0], versions=[0], tokens=5),
        _span(8.5, 9, SpanKind.SYNC_COLLECTIVE, "trainer", version=1),
        _span(9, 10, SpanKind.TRAIN, "trainer", step=2, leases=[0], versions=[0], tokens=5),
    ]
    summary = summarize(spans)
    assert summary.idle_secs == 3.5
    assert describe(summary)[0].endswith(", all devices idle 3.5 s (35%)")


def test_a_wait_beside_work_or_a_transfer_of_the_same_role_does_not_count():
    """The trainer reads the next batch while it trains, and sends weights while it reads."""
    spans = [
        _span(0, 30, step=1, version=0, tokens=10, leases=[0]),
        _span(0, 12, SpanKind.WAIT, "trainer", reason="experiences"),
        _span(2, 9, SpanKind.TRAIN, "trainer", step=1, leases=[0], versions=[0], tokens=5),
        _span(12, 20, SpanKind.SYNC_CHECKPOINT, "trainer", version=1),
        _span(13, 24, SpanKind.WAIT, "trainer", reason="experiences"),
        _span(23, 30, SpanKind.TRAIN, "trainer", step=2, leases=[0], versions=[0], tokens=5),
    ]
    summary = summarize(spans)
    trainer = summary.role("trainer")
    assert trainer.wait_secs == {"experiences": 2 + 3 + 3} == summary.wait_secs
    assert trainer.idle_secs == 8
    assert (trainer.busy_secs, trainer.sync_secs) == (14, 8)


@pytest.mark.parametrize("mode", MODES)
def test_a_role_waits_for_no_reason_longer_than_it_is_idle(mode):
    for role in summarize(simulate(mode)).roles:
        assert all(secs <= role.idle_secs + 1e-9 for secs in role.wait_secs.values())


def test_time_in_which_a_role_works_and_moves_weights_counts_once_as_work():
    spans = [_span(0, 4), _span(3, 6, SpanKind.SYNC_SERVER), _span(8, 9, SpanKind.SYNC_SERVER)]
    found = summarize_role("explorer1", spans, 10.0)
    assert (found.busy_secs, found.sync_secs, found.idle_secs) == (4.0, 3.0, 3.0)


def test_groups_that_were_carried_over_are_counted_and_told_where_there_are_any():
    spans = _hand_made_run()
    assert "carried over" not in "\n".join(describe(summarize(spans)))
    spans[1].attributes["carried_over"], spans[3].attributes["carried_over"] = 2, 1
    assert "carried over to the next rollout 3 times" in "\n".join(describe(summarize(spans)))


def test_time_of_evaluations_beside_rollouts_is_told_where_there_is_any():
    spans = _hand_made_run()
    assert "stood still" not in "\n".join(describe(summarize(spans)))
    spans[1].attributes["evaluating_secs"], spans[3].attributes["evaluating_secs"] = 0.5, 0.25
    found = summarize(spans)
    assert (found.evaluating_secs, found.rollout_secs) == (0.75, 6.0)
    assert "rollouts stood still for 0.8 s, 12.5% of their time" in "\n".join(describe(found))


def test_drafts_are_told_where_there_are_any():
    spans = _hand_made_run()
    assert "drafts" not in "\n".join(describe(summarize(spans)))
    tokens = summarize(spans).rollout_tokens
    engine = {"drafted_tokens": tokens, "accepted_tokens": tokens // 4}
    spans[1].attributes["engine"] = spans[3].attributes["engine"] = engine
    half, whole = tokens // 4 * 2, 2 * tokens
    line = f"drafts: {half:,} of {whole:,} drafted tokens were drawn, 2.00 tokens a decode step"
    assert line in describe(summarize(spans))


def test_an_older_token_in_a_batch_than_its_rollouts_say_counts():
    spans = [
        _span(0, 1, step=1, version=5, leases=[0]),
        _span(1, 2, SpanKind.TRAIN, "trainer", step=8, leases=[0], versions=[4, 5]),
    ]
    assert staleness(spans) == [2, 3]


def test_staleness_without_known_rollouts_is_that_of_the_recorded_versions():
    assert staleness([_span(1, 2, SpanKind.TRAIN, "trainer", step=4, versions=[1, 2])]) == [2, 1]


def test_a_run_without_rl_phase_is_refused():
    with pytest.raises(ValueError, match="1 rollouts and 0 train steps"):
        summarize([_span(0, 1)])
    with pytest.raises(ValueError, match="before the first rollout"):
        rl_phase([_span(5, 6), _span(0, 1, SpanKind.TRAIN, "trainer")])


def test_the_modes_differ_as_they_should():
    runs = {mode: summarize(simulate(mode, 20)) for mode in MODES}
    assert runs["synchronous"].overlap_secs == pytest.approx(0.0, abs=1e-6)
    assert runs["synchronous"].max_staleness == 0
    assert runs["synchronous"].achieved_ratio > 1.0
    for mode in ("one_step_off_policy", "asynchronous", "multi_explorer"):
        assert runs[mode].overlap_secs > 0.8 * runs[mode].train_secs * 0.85
    assert runs["one_step_off_policy"].max_staleness == 1
    assert 1 <= runs["asynchronous"].max_staleness <= 2
    assert "synchronization" not in runs["asynchronous"].wait_secs
    roles = [role.role for role in runs["multi_explorer"].roles]
    assert roles == ["explorer1", "explorer2", "explorer3", "trainer"]


@pytest.mark.parametrize("mode", MODES)
def test_the_shares_of_every_role_sum_to_one(mode):
    for role in summarize(simulate(mode)).roles:
        total = role.busy_share + role.sync_share + role.idle_share
        assert total == pytest.approx(1.0)
        assert min(role.busy_share, role.sync_share, role.idle_share) >= 0.0


def test_the_description_names_every_role_and_wait():
    spans = simulate("synchronous", 4)
    text = "\n".join(describe(summarize(spans)))
    assert "explorer1:" in text
    assert "waited" in text
    assert "for experiences" in text
    trained = sum(span.attributes["tokens"] for span in of_kind(spans, SpanKind.TRAIN))
    assert trained == 4 * TOKENS
