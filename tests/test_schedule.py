"""The sync schedule, as a table of integers and by properties."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.schedule import MODES, SyncSchedule, resolve

INTERVALS = range(1, 9)
OFFSETS = range(9)
INTERVALS_AND_OFFSETS = [(i, o) for i in INTERVALS for o in OFFSETS]


def exact(interval: int, offset: int, start: int = 0) -> SyncSchedule:
    return SyncSchedule(interval, offset, "exact", interval + offset - 1, start)


# Versions of explorer steps 1 to 12, written by hand.
VERSIONS = {
    (1, 0): [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    (2, 0): [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10],
    (4, 0): [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8],
    (1, 1): [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    (1, 4): [0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7],
    (2, 3): [0, 0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8],
    (3, 1): [0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9],
    (8, 8): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
}
# Staleness of batches 1 to 12, written by hand.
STALENESS = {
    (1, 0): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    (2, 0): [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1],
    (4, 0): [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
    (1, 1): [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    (1, 4): [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4],
    (2, 3): [0, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3],
    (3, 1): [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2],
    (8, 8): [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
}


@pytest.mark.parametrize(("interval", "offset"), VERSIONS)
def test_versions_and_staleness_are_those_of_the_table(interval, offset):
    schedule = exact(interval, offset)
    versions = [schedule.exact_version(e) for e in range(1, 13)]
    assert versions == VERSIONS[interval, offset]
    staleness = [schedule.staleness(t, v) for t, v in enumerate(versions, start=1)]
    assert staleness == STALENESS[interval, offset]


TABLE = Path(__file__).parent / "data" / "schedule.txt"


def table() -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Returns (versions, staleness) of every pair (interval, offset)."""
    rows = {}
    for line in TABLE.read_text().splitlines()[1:]:
        pair, versions, staleness = ([int(x) for x in part.split()] for part in line.split("|"))
        rows[pair[0], pair[1]] = (versions, staleness)
    return rows


def test_every_interval_and_offset_is_as_tabulated():
    rows = table()
    assert set(rows) == set(INTERVALS_AND_OFFSETS)
    for (interval, offset), (versions, staleness) in rows.items():
        schedule = exact(interval, offset)
        steps = range(1, len(versions) + 1)
        assert [schedule.exact_version(e) for e in steps] == versions
        assert [schedule.staleness(t, versions[t - 1]) for t in steps] == staleness


def test_a_trainer_and_an_explorer_that_follow_the_rules_produce_the_formula(subtests):
    """The protocol, played by hand: the explorer may be O batches ahead of a published version."""
    for interval, offset in INTERVALS_AND_OFFSETS:
        with subtests.test(interval=interval, offset=offset):
            schedule = exact(interval, offset)
            published = [0]
            for e in range(1, 101):
                # The explorer has e - 1 batches behind it; it takes the newest version that is
                # published by the time when the trainer has finished e - 1 - offset steps.
                finished = max(0, e - 1 - offset)
                due = max(v for v in range(0, finished + 1) if v % interval == 0)
                published.append(due)
                assert schedule.exact_version(e) == due
                assert 0 <= schedule.staleness(e, due) <= interval + offset - 1
                if e > offset:
                    assert schedule.staleness(e, due) >= offset
            assert schedule.staleness_bound == interval + offset - 1


def test_the_bound_is_reached_and_every_used_version_is_published_in_time(subtests):
    for interval, offset in INTERVALS_AND_OFFSETS:
        with subtests.test(interval=interval, offset=offset):
            schedule = exact(interval, offset)
            steps = range(1, 101)
            worst = max(schedule.staleness(e, schedule.exact_version(e)) for e in steps)
            assert worst == schedule.staleness_bound
            for e in steps:
                version = schedule.exact_version(e)
                assert schedule.publishes_after(version)
                assert version <= e - 1, "a version that depends on the batch that it makes"
                assert schedule.first_user(version) <= e
                assert schedule.exact_version(schedule.first_user(version)) == version
                assert schedule.may_start(e, version)
                assert not schedule.may_start(e, version + interval)
                assert schedule.accepts(e, version)


@given(
    st.integers(1, 8), st.integers(0, 8), st.integers(0, 1000), st.integers(1, 500)
)  # fmt: skip
def test_a_schedule_that_goes_on_from_a_step_is_the_same_schedule_moved(interval, offset, start, e):
    moved, plain = exact(interval, offset, start), exact(interval, offset)
    assert moved.exact_version(start + e) == start + plain.exact_version(e)
    assert moved.publishes_after(start + e) == plain.publishes_after(e)
    version = moved.exact_version(start + e)
    assert moved.exact_version(moved.first_user(version)) == version
    if version > start:
        assert moved.exact_version(moved.first_user(version) - 1) < version


@given(st.integers(1, 8), st.integers(0, 20), st.integers(1, 500))
def test_without_an_offset_a_run_resumed_from_a_published_step_uses_the_same_versions(
    interval, periods, e
):
    """docs/using.md: such a run comes to the same bits as one that was not interrupted."""
    start = interval * periods
    assert exact(interval, 0, start).exact_version(start + e) == exact(interval, 0).exact_version(
        start + e
    )


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 100))
def test_with_an_offset_or_from_another_step_a_resumed_run_uses_other_versions(
    interval, offset, start
):
    """docs/using.md: such a run may come to other bits."""
    moved, plain = exact(interval, offset, start), exact(interval, offset)
    steps = range(start + 1, start + interval + offset + 1)
    same = all(moved.exact_version(e) == plain.exact_version(e) for e in steps)
    assert same == (offset == 0 and start % interval == 0)


@given(st.integers(1, 8), st.integers(0, 16), st.lists(st.integers(1, 9), min_size=1, max_size=60))
def test_latest_pulls_never_exceed_the_bound_and_never_deadlock(interval, slack, paces):
    """Explorer and trainer have any paces: the rule alone keeps the bound, and both go on."""
    schedule = SyncSchedule(interval, 0, "latest", interval - 1 + slack)
    newest, buffer, e = 0, [], 0
    for trained, pace in enumerate(paces, start=1):
        for _ in range(pace):
            if not schedule.may_start(e + 1, newest):
                break
            e += 1
            buffer.append(newest)
        assert buffer, "neither the explorer nor the trainer can go on"
        version = buffer.pop(0)
        assert schedule.accepts(trained, version)
        assert schedule.staleness(trained, version) <= schedule.staleness_bound
        if schedule.publishes_after(trained):
            newest = trained


def test_groups_from_the_future_are_refused():
    schedule = resolve("asynchronous")
    assert not schedule.accepts(5, 5)
    assert schedule.accepts(5, 4)
    assert not schedule.accepts(5, 4 - schedule.max_staleness - 1)


@pytest.mark.parametrize(
    ("mode", "settings", "expected"),
    [
        ("synchronous", {}, (1, 0, "exact", 0)),
        ("synchronous", {"interval": 4}, (4, 0, "exact", 3)),
        ("one_step_off_policy", {}, (1, 1, "exact", 1)),
        ("asynchronous", {}, (1, 0, "latest", 2)),
        ("asynchronous", {"interval": 3, "max_staleness": 2}, (3, 0, "latest", 2)),
        ("multi_explorer", {"max_staleness": 5}, (1, 0, "latest", 5)),
        ("custom", {"interval": 2, "offset": 3}, (2, 3, "exact", 4)),
        ("custom", {"interval": 2, "pull": "latest"}, (2, 0, "latest", 3)),
    ],
)
def test_modes_resolve_to_schedules(mode, settings, expected):
    schedule = resolve(mode, **settings)
    assert (schedule.interval, schedule.offset, schedule.pull, schedule.max_staleness) == expected


@pytest.mark.parametrize(
    ("mode", "settings", "message"),
    [
        ("sinchronous", {}, "did you mean 'synchronous'"),
        ("synchronous", {"interval": 0}, "at least 1, not 0"),
        ("custom", {"offset": -1}, "at least 0, not -1"),
        ("synchronous", {"offset": 2}, "contradicts sync.mode=synchronous"),
        ("one_step_off_policy", {"interval": 2}, "contradicts sync.mode=one_step_off_policy"),
        ("asynchronous", {"pull": "exact"}, "contradicts sync.mode=asynchronous"),
        ("asynchronous", {"interval": 4, "max_staleness": 2}, "below interval - 1 = 3"),
        ("custom", {"interval": 2, "offset": 2, "max_staleness": 2}, "interval . offset - 1 = 3"),
    ],
)
def test_contradictions_are_refused_with_the_way_out(mode, settings, message):
    with pytest.raises(ValueError, match=message):
        resolve(mode, **settings)


def test_every_mode_resolves_by_its_name_alone():
    for mode in MODES:
        assert resolve(mode).start == 0


def test_no_explorer_asks_for_a_version_older_than_those_in_use(subtests):
    for interval, offset in INTERVALS_AND_OFFSETS:
        with subtests.test(interval=interval, offset=offset):
            schedule = exact(interval, offset)
            asked_most = 0
            for trained in range(4 * (interval + offset)):
                published = [v for v in range(trained + 1) if schedule.publishes_after(v)]
                # Batch `trained` is whole: nobody generates for an earlier step than the next.
                asked = schedule.exact_version(trained + 1)
                assert asked in published[-schedule.versions_in_use :]
                asked_most = max(asked_most, len(published) - published.index(asked))
            assert asked_most == schedule.versions_in_use


def test_latest_pulls_use_one_version():
    assert resolve("asynchronous").versions_in_use == 1
