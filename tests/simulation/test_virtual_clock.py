"""The virtual clock: threads that wait for each other, and a life that ends."""

import functools
import queue

import pytest

from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.virtual_clock import LifeEndedError, VirtualClock


class Life:
    """A clock over an event queue, with what its threads have told."""

    def __init__(self):
        self.queue, self.told, self.failures = EventQueue(), [], []
        now = lambda: self.queue.now_secs  # noqa: E731
        self.clock = VirtualClock(now, self.queue.after, self.failures.append)

    def tell(self, what):
        self.told.append((self.queue.now_secs, what))

    def run(self, *threads):
        for number, thread in enumerate(threads):
            self.clock.thread(thread, f"thread {number}")
        while self.queue.step():
            pass
        return self.told


@pytest.fixture
def life():
    return Life()


def test_threads_sleep_beside_each_other(life):
    def slow():
        for number in range(2):
            life.clock.sleep(3.0)
            life.tell(f"slow {number}")

    def quick():
        for number in range(3):
            life.clock.sleep(2.0)
            life.tell(f"quick {number}")

    assert life.run(slow, quick) == [
        (2.0, "quick 0"),
        (3.0, "slow 0"),
        (4.0, "quick 1"),
        (6.0, "slow 1"),
        (6.0, "quick 2"),
    ]


def test_a_wait_ends_with_its_time_or_with_what_it_waits_for(life):
    flag, places, box = life.clock.event(), life.clock.semaphore(1), life.clock.mailbox()

    def waits():
        life.tell(flag.wait(1.0))
        life.tell(flag.wait())
        life.tell([places.acquire(), places.acquire(blocking=False), places.acquire(timeout=2.0)])
        life.tell(box.get(timeout=9.0))
        with pytest.raises(queue.Empty):
            box.get(timeout=1.0)
        life.tell("empty")

    def acts():
        life.clock.sleep(5.0)
        flag.set()
        life.clock.sleep(1.0)
        places.release()
        life.clock.sleep(2.0)
        box.put("a letter")

    told = [(1.0, False), (5.0, True), (6.0, [True, False, True]), (8.0, "a letter")]
    assert life.run(waits, acts) == [*told, (9.0, "empty")]


def test_a_pool_runs_as_many_functions_at_once_as_it_has_threads(life):
    def work(secs):
        life.clock.sleep(secs)
        return secs

    def fail():
        raise ValueError("no")

    def main():
        pool = life.clock.pool(2, "pool")
        futures = [pool.submit(work, secs) for secs in (3.0, 1.0, 1.5)]
        futures[2].add_done_callback(lambda one: life.tell(("done", one.result())))
        life.tell([one.result() for one in futures])
        failed = pool.submit(fail)
        assert isinstance(failed.exception(), ValueError)
        last = pool.submit(functools.partial(work, 4.0))
        pool.shutdown()
        life.tell(last.done())

    assert life.run(main) == [(2.5, ("done", 1.5)), (3.0, [3.0, 1.0, 1.5]), (7.0, True)]
    assert life.failures == []


def test_a_life_that_ends_ends_its_threads_where_they_wait_and_they_do_nothing_more(life):
    flag = life.clock.event()

    def waits():
        try:
            flag.wait(60.0)
        finally:
            life.tell("ends")
            with pytest.raises(LifeEndedError):
                life.clock.sleep(1.0)

    def dies():
        life.clock.sleep(2.0)
        life.clock.die()
        flag.set()
        life.clock.sleep(1.0)
        life.tell("never")

    def comes_late():
        life.clock.sleep(9.0)
        life.tell("never")

    assert life.run(waits, dies, comes_late) == [(2.0, "ends")]
    assert life.failures == []


def test_the_error_of_a_thread_is_told(life):
    def fails():
        life.clock.sleep(1.0)
        raise RuntimeError("broken")

    life.run(fails)
    assert [str(error) for error in life.failures] == ["broken"]
