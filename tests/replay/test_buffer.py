"""Behavior of every replay buffer: a Reverb server, and our own."""

import collections
import contextlib
import threading
import time

import numpy as np
import pytest

from rl_sync.replay.replay_interface import ReplayError, ReplayTimeoutError


def item(i):
    return {"i": np.int32(i)}


def insert(replay, table, values, **kwargs):
    for i in values:
        replay.insert(table, item(i), timeout_secs=5, **kwargs)


def sample(replay, table, count, timeout_secs=5.0):
    return replay.sample(table, count, timeout_secs=timeout_secs)


def values(samples):
    return [int(one.columns["i"]) for one in samples]


def eventually(condition, timeout_secs=5.0):
    """Waits until a condition holds: a server updates its counts with a delay."""
    deadline = time.monotonic() + timeout_secs
    while not condition():
        assert time.monotonic() < deadline, "waited in vain for the server's state to change"
        time.sleep(0.01)


def test_queue_gives_each_item_once_and_in_order(replay):
    replay.insert_many("long_queue", [item(i) for i in range(500)], timeout_secs=5)
    insert(replay, "long_queue", range(500, 520))
    assert values(sample(replay, "long_queue", 519)) == list(range(519))
    assert values(sample(replay, "long_queue", 1)) == [519]
    eventually(lambda: replay.info()["long_queue"].current_size == 0)


def test_full_queue_blocks_the_writer_until_its_deadline_and_keeps_the_item(replay):
    insert(replay, "queue", range(3))
    start = time.monotonic()
    with pytest.raises(ReplayTimeoutError, match=r"0\.3 s for room for 1 item.*holds 3 of at most"):
        replay.insert("queue", item(3), timeout_secs=0.3)
    assert 0.3 <= time.monotonic() - start < 2.0
    with pytest.raises(ReplayTimeoutError):
        replay.flush(timeout_secs=0.1)
    assert values(sample(replay, "queue", 1)) == [0]
    replay.flush(timeout_secs=5)
    insert_later = threading.Thread(target=insert, args=(replay, "queue", [4]))
    insert_later.start()
    assert values(sample(replay, "queue", 4)) == [1, 2, 3, 4]
    insert_later.join(5)
    assert not insert_later.is_alive()


def test_a_queue_of_several_draws_gives_each_item_so_often_and_then_has_room(replay):
    insert(replay, "again", range(2))
    with pytest.raises(ReplayTimeoutError, match="room for 1 item"):
        replay.insert("again", item(2), timeout_secs=0.2)
    drawn = values(sample(replay, "again", 3))
    replay.flush(timeout_secs=5)
    drawn += values(sample(replay, "again", 6))
    assert collections.Counter(drawn) == {0: 3, 1: 3, 2: 3}
    eventually(lambda: replay.info()["again"].current_size == 0)


def test_blocked_writer_goes_on_as_soon_as_there_is_room(replay):
    insert(replay, "queue", range(3))
    done = []

    def write():
        replay.insert("queue", item(3), timeout_secs=10)
        done.append(time.monotonic())

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.3)
    assert not done
    sampled_at = time.monotonic()
    sample(replay, "queue", 1)
    writer.join(5)
    assert done[0] - sampled_at < 1.0
    sample(replay, "queue", 3)


def test_of_several_blocked_writers_only_those_with_room_go_on(replay):
    insert(replay, "queue", range(3))
    writers = [threading.Thread(target=insert, args=(replay, "queue", [i])) for i in (3, 4)]
    for writer in writers:
        writer.start()
    time.sleep(0.2)
    for expected in (1, 0):
        sample(replay, "queue", 1)
        eventually(lambda left=expected: sum(w.is_alive() for w in writers) == left)
        time.sleep(0.1)
        assert sum(writer.is_alive() for writer in writers) == expected
    for writer in writers:
        writer.join(5)


def test_sampler_times_out_on_an_empty_table_and_says_so(replay):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.5 s .*'queue'.*holds 0 of at most 3"):
        sample(replay, "queue", 2, timeout_secs=0.5)
    assert 0.5 <= time.monotonic() - start < 2.0


def test_sampler_returns_what_came_in_time(replay):
    insert(replay, "queue", range(2))
    start = time.monotonic()
    assert values(sample(replay, "queue", 3, timeout_secs=0.5)) == [0, 1]
    assert 0.5 <= time.monotonic() - start < 2.0
    insert(replay, "queue", [2])
    assert values(sample(replay, "queue", 1, timeout_secs=0)) == [2]


def test_waiting_sampler_gets_an_item_as_soon_as_it_comes(replay):
    inserted_at = []

    def write():
        time.sleep(0.5)
        inserted_at.append(time.monotonic())
        insert(replay, "queue", [7])

    writer = threading.Thread(target=write)
    writer.start()
    assert values(sample(replay, "queue", 1)) == [7]
    assert time.monotonic() - inserted_at[0] < 1.0
    writer.join(5)


def test_an_item_goes_after_max_times_sampled(replay):
    insert(replay, "twice", [1, 2])
    drawn = sample(replay, "twice", 4)
    assert values(drawn) == [1, 1, 2, 2]
    assert [one.times_sampled for one in drawn] == [1, 2, 1, 2]
    with pytest.raises(ReplayTimeoutError):
        sample(replay, "twice", 1, timeout_secs=0.1)


def test_stack_draws_the_newest(replay):
    insert(replay, "stack", range(3))
    assert values(sample(replay, "stack", 1)) == [2]
    insert(replay, "stack", [3])
    assert values(sample(replay, "stack", 2)) == [3, 3]


def test_uniform_table_draws_everything_alike(replay):
    insert(replay, "uniform", range(5))
    drawn = sample(replay, "uniform", 2000)
    counts = collections.Counter(values(drawn))
    # Binomial(2000, 1/5): 400 ± 18, so this fails once in some 10⁸ runs.
    assert all(300 < counts[i] < 500 for i in range(5))
    assert {one.probability for one in drawn} == {0.2}
    assert {one.table_size for one in drawn} == {5}


def test_prioritized_table_draws_in_proportion_to_the_power_of_the_priority(replay):
    for i, priority in enumerate([0.0, 1.0, 2.0]):
        insert(replay, "prioritized", [i], priority=priority)
    drawn = sample(replay, "prioritized", 2000)
    counts = collections.Counter(values(drawn))
    # Exponent 2: probabilities 0, 1/5, 4/5.
    assert counts[0] == 0
    assert 300 < counts[1] < 500
    by_value = {int(one.columns["i"]): one for one in drawn}
    assert by_value[1].probability == pytest.approx(0.2)
    assert by_value[2].probability == pytest.approx(0.8)
    assert by_value[2].priority == 2.0


def test_a_full_table_drops_its_oldest(replay):
    insert(replay, "small", range(5))
    assert set(values(sample(replay, "small", 100))) == {2, 3, 4}


def test_a_table_gives_nothing_before_its_minimal_size(replay):
    insert(replay, "patient", range(2))
    with pytest.raises(ReplayTimeoutError, match="holds 2 of"):
        sample(replay, "patient", 1, timeout_secs=0.2)
    insert(replay, "patient", [2])
    assert len(sample(replay, "patient", 5)) == 5


def test_a_ratio_holds_samplers_and_writers_together(replay):
    # 2 samples an insert, from 2 items on, 4 samples of slack, so 0 ≤ 2·inserts − samples ≤ 8.
    insert(replay, "ratio", range(4))
    with pytest.raises(ReplayTimeoutError):
        replay.insert("ratio", item(4), timeout_secs=0.2)
    assert len(sample(replay, "ratio", 100, timeout_secs=0.3)) == 10
    replay.flush(timeout_secs=5)
    # 5 inserts and 10 samples so far.
    insert(replay, "ratio", range(4))
    with pytest.raises(ReplayTimeoutError):
        replay.insert("ratio", item(9), timeout_secs=0.2)
    replay.reset("ratio")
    replay.flush(timeout_secs=5)


@pytest.mark.parametrize("shared", [True, False])
def test_several_writers_and_readers_lose_and_double_nothing(backend, shared):
    users = [backend.replay if shared else backend.connect() for _ in range(6)]
    writers, readers, each = users[:4], users[4:], 100
    got, lock = [], threading.Lock()

    def write(w):
        for i in range(each):
            writers[w].insert("queue", item(w * each + i), timeout_secs=20)

    def read(r):
        while True:
            with lock:
                if len(got) >= 4 * each:
                    return
            try:
                drawn = readers[r].sample("queue", 3, timeout_secs=0.2)
            except ReplayTimeoutError:
                continue
            with lock:
                got.extend(values(drawn))

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    threads += [threading.Thread(target=read, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == list(range(4 * each))
    for user in users:
        if user is not backend.replay:
            user.close()


def test_a_full_table_does_not_hold_up_another(replay):
    insert(replay, "queue", range(3))
    with pytest.raises(ReplayTimeoutError):
        replay.insert("queue", item(3), timeout_secs=0.1)
    replay.insert("long_queue", item(0), timeout_secs=1)
    sample(replay, "queue", 4)
    replay.flush(timeout_secs=5)


def test_info_counts(replay):
    insert(replay, "queue", range(3))
    sample(replay, "queue", 2)
    eventually(lambda: replay.info()["queue"].current_size == 1)
    info = replay.info()["queue"]
    assert (info.name, info.sampler) == ("queue", "fifo")
    assert (info.max_size, info.max_times_sampled, info.min_size_to_sample) == (3, 1, 1)
    assert (info.num_inserted, info.num_sampled) == (3, 2)
    assert replay.info()["prioritized"].sampler == "prioritized"
    assert replay.info()["best"].sampler == "max_heap"


def test_reset_empties_a_table_and_gives_its_room_back(replay):
    insert(replay, "queue", range(3))
    replay.reset("queue")
    insert(replay, "queue", range(3, 6))
    assert values(sample(replay, "queue", 3)) == [3, 4, 5]


@pytest.mark.parametrize(
    "use",
    [
        lambda replay: insert(replay, "nowhere", [0]),
        lambda replay: sample(replay, "nowhere", 1),
        lambda replay: replay.reset("nowhere"),
    ],
)
def test_an_unknown_table_is_named_with_those_that_there_are(replay, use):
    with pytest.raises(ReplayError, match=r"nowhere.*long_queue"):
        use(replay)


@pytest.mark.gate
def test_items_that_come_as_a_wait_for_them_ends_are_not_lost(replay):
    """A server that gives up on a sampler may already have taken items out for it."""
    batches, pause = 400, np.random.default_rng(0)

    def write():
        for i in range(batches):
            replay.insert_many("long_queue", [item(3 * i + j) for j in range(3)], timeout_secs=20.0)
            time.sleep(pause.uniform(0, 0.02))

    writer = threading.Thread(target=write)
    writer.start()
    seen, deadline = [], time.monotonic() + 60.0
    while len(seen) < 3 * batches and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            seen += values(sample(replay, "long_queue", 6, timeout_secs=0.01))
        if not writer.is_alive() and replay.info()["long_queue"].current_size == 0:
            break
    writer.join()
    assert seen == list(range(3 * batches))
