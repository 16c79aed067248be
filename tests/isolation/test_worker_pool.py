"""The pool of workers: requests, state, limits, and the ends of workers."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
import time

import psutil
import pytest

from rl_sync.isolation.worker import WorkerLostError
from rl_sync.isolation.worker_pool import WorkerPool, encoded

PROGRAM = "tests.isolation.echo:Echo"
LATEST = 60.0


@contextlib.contextmanager
def pool_of(workers=2, arguments=(), start_secs=60.0):
    pool = WorkerPool(PROGRAM, [*arguments], name="echo", workers=workers, start_secs=start_secs)
    try:
        yield pool
    finally:
        pool.close()


def asked(pool, *request, limit_secs=LATEST):
    return pool.submit(encoded([*request], "it"), limit_secs).result(LATEST)


def of(worker, *request, limit_secs=LATEST):
    return worker.ask(encoded([*request], "it"), limit_secs).result(LATEST)


def has_ended(pid):
    """Waits until a process has ended; a zombie has."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        return True
    return False


def test_a_worker_that_was_taken_keeps_its_state_until_it_is_given_back():
    with pool_of() as pool:
        mine, other = pool.take(), pool.take()
        assert pool.take() is None
        assert [of(mine, "count"), of(mine, "count"), of(other, "count")] == [1, 2, 1]
        pool.give_back(mine)
        assert pool.take() is mine
        assert of(mine, "count") == 3


def test_requests_wait_for_a_free_worker_and_each_gets_its_answer():
    with pool_of() as pool:
        taken = pool.take()
        answers = [pool.submit(encoded(i, "it"), LATEST) for i in range(50)]
        assert [one.result(LATEST) for one in answers] == [*range(50)]
        assert asked(pool, "process") != of(taken, "process")


def test_a_request_that_waits_gets_the_worker_that_takes_the_place_of_a_retired_one():
    with pool_of(workers=1) as pool:
        taken = pool.take()
        answer = pool.submit(encoded(7, "it"), LATEST)
        pool.retire(taken)
        assert answer.result(10.0) == 7


def test_workers_are_copies_of_one_process_that_is_prepared_once():
    with pool_of() as pool:
        first, second = pool.take(), pool.take()
        (parent, prepared), again = of(first, "server"), of(second, "server")
        assert [parent, prepared] == again
        assert parent == prepared != os.getpid()


def test_errors_of_the_program_are_answers_and_the_worker_stays():
    with pool_of(workers=1) as pool:
        process = asked(pool, "process")
        error = asked(pool, "raise")
        assert (type(error), str(error)) == (LookupError, "a fault of mine")
        assert isinstance(asked(pool, "memory"), MemoryError)
        assert "object cannot be sent" in str(asked(pool, "object"))
        assert "65 MiB, more than the 64" in str(asked(pool, "long", 65 << 20))
        assert len(asked(pool, "long", 30 << 20)) == 30 << 20
        assert asked(pool, "process") == process


def test_a_worker_that_is_killed_by_hand_fails_its_request_and_is_replaced():
    with pool_of(workers=1) as pool:
        process = asked(pool, "process")
        answer = pool.submit(encoded(["sleep", 60], "it"), LATEST)
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="was killed by SIGKILL, as the system") as lost:
            answer.result(LATEST)
        assert lost.value.kind == "died"
        assert time.monotonic() - began < 10
        second = asked(pool, "process")
        assert second != process
        os.kill(second, signal.SIGKILL)  # While nobody asks it.
        assert has_ended(second)
        assert asked(pool, "process") not in (process, second)


def test_a_worker_is_replaced_before_its_end_is_reported():
    with pool_of(workers=1) as pool:
        process = asked(pool, "process")
        reporter = psutil.Process(process).ppid()
        os.kill(reporter, signal.SIGSTOP)
        os.kill(process, signal.SIGKILL)
        assert has_ended(process)
        threading.Timer(0.5, os.kill, (reporter, signal.SIGCONT)).start()
        assert asked(pool, "process") != process


def test_a_worker_that_takes_too_long_is_killed_with_what_it_started(tmp_path):
    with pool_of(workers=1) as pool:
        process, note = asked(pool, "process"), tmp_path / "child"
        assert asked(pool, "leave", str(note)) == "left"
        with pytest.raises(WorkerLostError, match=r"did not answer within 0\.5 s") as lost:
            asked(pool, "sleep", 60, limit_secs=0.5)
        assert lost.value.kind == "time-out"
        assert has_ended(process)
        assert has_ended(int(note.read_text()))
        assert asked(pool, "count") == 1


def test_retiring_a_worker_ends_the_request_under_way():
    with pool_of(workers=1) as pool:
        worker = pool.take()
        process = of(worker, "process")
        answer = worker.ask(encoded(["sleep", 60], "it"), LATEST)
        pool.retire(worker)
        with pytest.raises(WorkerLostError, match="was killed by its host"):
            answer.result(LATEST)
        assert has_ended(process)
        with pytest.raises(WorkerLostError, match="was killed by its host"):
            of(worker, "count")
        assert asked(pool, "process") != process


def test_closing_ends_workers_whatever_they_do_and_cancels_what_waits():
    with pool_of(workers=1) as pool:
        process = asked(pool, "process")
        under_way, waits = (pool.submit(encoded(["sleep", 60], "it"), LATEST) for _ in range(2))
        time.sleep(0.3)
        began = time.monotonic()
    assert time.monotonic() - began < 8
    assert isinstance(under_way.exception(LATEST), WorkerLostError)
    assert waits.cancelled()
    assert pool.submit(b"", 1.0).cancelled()
    assert has_ended(process)


@pytest.mark.gate
def test_a_fault_of_preparing_is_told_and_one_of_beginning_is_told_by_each_worker():
    with pool_of(arguments=["no such thing"]) as pool:
        with pytest.raises(ValueError, match="no such thing"):
            pool.prepare()
        with pytest.raises(ValueError, match="no such thing"):
            asked(pool, "count")
    with pool_of(arguments=["half a fault"]) as pool:
        assert [one.result(LATEST) for one in pool.start_all()] == ["half a fault"] * 2
        assert asked(pool, "count") == 1


def test_all_workers_are_started_at_once():
    with pool_of(workers=3) as pool:
        assert [one.result(LATEST) for one in pool.start_all()] == [""] * 3
        workers = [pool.take() for _ in range(3)]
        assert len({of(worker, "process") for worker in workers}) == 3


def test_rows_of_any_objects_are_sent_to_workers_but_none_come_back():
    row = {"when": datetime.date(2026, 1, 2), "texts": ("a", {"b"}), "class": datetime.date}
    with pool_of(workers=1) as pool:
        error = asked(pool, "back", row)
        assert isinstance(error, TypeError)
        assert "cannot be sent to other processes" in str(error)
        with pytest.raises(ValueError, match="The row cannot be sent to a worker"):
            encoded({"x": lambda: 1}, "The row")


@pytest.mark.gate
def test_workers_start_again_after_their_parent_was_killed():
    with pool_of(workers=1) as pool:
        parent, _ = asked(pool, "server")
        process = asked(pool, "process")
        os.kill(parent, signal.SIGKILL)
        assert has_ended(process)
        assert asked(pool, "server")[0] != parent
