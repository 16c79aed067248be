"""Weights arrive in a thread; only what has arrived counts as available."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import threading

import pytest

from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError
from rl_sync.weights.prefetching import PrefetchingPuller

THREAD = "weights-prefetch"


class Transfer:
    """A puller whose versions are published and arrive when a test says so."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._published = self._arriving = -1
        self._errors: list[BaseException] = []
        self.under_way = threading.Event()
        self.arrived: list[int] = []
        self.closed = False

    def publish(self, version: int, arrives: bool = True) -> None:
        with self._changed:
            self._published = version
            if arrives:
                self._arriving = version
            self._changed.notify_all()

    def arrive(self) -> None:
        self.publish(self._published)

    def fail(self, *errors: BaseException) -> None:
        with self._changed:
            self._errors += errors
            self._changed.notify_all()

    def pull(self, *, exactly=None, at_least=None, timeout_secs):
        assert exactly is None
        with self._changed:
            version = self._published
            self.under_way.set()
            self._changed.wait_for(lambda: self._arriving >= version or self._errors)
            if self._errors:
                raise self._errors.pop(0)
            assert version >= at_least
            self.arrived.append(version)
            return version, f"weights {version}"

    def newest(self, at_least=-1, timeout_secs=0.0):
        with self._changed:
            self._changed.wait_for(
                lambda: self._published >= at_least or self.closed, min(timeout_secs, 0.02)
            )
            return self._published

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def transfer():
    return Transfer()


@pytest.fixture
def puller(transfer):
    with contextlib.closing(PrefetchingPuller(transfer)) as puller:
        yield puller
        transfer.arrive()  # What is under way ends.


def test_a_version_is_available_once_it_has_arrived(transfer, puller):
    assert (puller.at_hand(), puller.newest()) == (-1, -1)
    transfer.publish(3, arrives=False)
    assert transfer.under_way.wait(60)
    assert (puller.newest(), puller.newest(3, 0.02), puller.at_hand()) == (-1, -1, -1)
    with pytest.raises(WeightsTimeoutError, match=r"any version of the weights.*arrived is -1"):
        puller.pull(timeout_secs=0.02)
    transfer.arrive()
    assert puller.newest(3, 60) == puller.at_hand() == 3
    assert puller.pull(timeout_secs=0) == (3, "weights 3")


def test_an_explorer_goes_on_with_what_it_has_while_newer_weights_travel(transfer, puller):
    transfer.publish(1)
    assert puller.pull(timeout_secs=60) == (1, "weights 1")
    transfer.under_way.clear()
    transfer.publish(2, arrives=False)
    assert transfer.under_way.wait(60)
    assert puller.newest() == 1
    assert puller.pull(at_least=1, timeout_secs=0) == (1, "weights 1")
    with pytest.raises(WeightsTimeoutError, match=r"at least 2 .*arrived is 1"):
        puller.pull(at_least=2, timeout_secs=0.02)
    with pytest.raises(WeightsTimeoutError, match=r"version 2 .*arrived is 1"):
        puller.pull(exactly=2, timeout_secs=0.02)


@pytest.mark.parametrize("wanted", [{"exactly": 4}, {"at_least": 4}, {"at_least": 2}])
def test_a_pull_waits_until_the_version_arrives(transfer, puller, wanted):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pulled = pool.submit(puller.pull, **wanted, timeout_secs=60)
        assert not pulled.done()
        transfer.publish(4)
        assert pulled.result(60) == (4, "weights 4")
    assert puller.pull(**wanted, timeout_secs=0) == (4, "weights 4")


def test_a_version_that_is_over_or_was_skipped_does_not_arrive_again(transfer, puller):
    transfer.publish(4)
    assert puller.newest(4, 60) == 4
    for version in (3, 5):
        with pytest.raises(WeightsTimeoutError):
            puller.pull(exactly=version, timeout_secs=0.01)
    transfer.publish(9)
    assert puller.newest(5, 60) == 9
    assert transfer.arrived == [4, 9]


def test_one_version_or_the_newest_is_wanted_but_not_both(puller):
    with pytest.raises(ValueError, match="not for both"):
        puller.pull(exactly=1, at_least=1, timeout_secs=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_look_names_a_version_before_it_has_arrived(seed):
    draw, transfer = random.Random(seed), Transfer()
    with contextlib.closing(PrefetchingPuller(transfer)) as puller:
        published = arrived = -1
        for _ in range(40):
            if draw.random() < 0.5:
                published += draw.randint(1, 3)
                if will_arrive := draw.random() < 0.5:
                    arrived = published
                transfer.publish(published, will_arrive)
            seen = [puller.newest(), puller.at_hand()]
            assert all(version in (-1, *transfer.arrived) for version in seen)
            assert seen == sorted(seen)
            if arrived >= 0 and draw.random() < 0.5:
                version, params = puller.pull(at_least=0, timeout_secs=60)
                assert version in transfer.arrived
                assert params == f"weights {version}"
        transfer.publish(published + 1)
        assert puller.newest(published + 1, 60) == published + 1


def test_each_arrival_is_reported_before_the_version_is_available():
    transfer, reports = Transfer(), []

    def note(version, secs):
        reports.append((version, puller.at_hand(), secs >= 0))

    with contextlib.closing(PrefetchingPuller(transfer, note)) as puller:
        for version in (2, 5):
            transfer.publish(version)
            assert puller.newest(version, 60) == version
    assert reports == [(2, -1, True), (5, 2, True)]


def test_an_error_reaches_those_who_wait_and_those_who_ask_later(transfer, puller):
    transfer.publish(1)
    assert puller.newest(1, 60) == 1
    error = WeightsMismatchError(2, "one", "other")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pulled = pool.submit(puller.pull, at_least=2, timeout_secs=60)
        newest = pool.submit(puller.newest, 2, 60)
        transfer.publish(2, arrives=False)
        transfer.fail(error)
        assert pulled.exception(60) is newest.exception(60) is error
    for ask in (
        puller.newest,
        lambda: puller.newest(2, 60),
        lambda: puller.pull(at_least=2, timeout_secs=60),
        lambda: puller.pull(exactly=7, timeout_secs=60),
    ):
        with pytest.raises(WeightsMismatchError):
            ask()
    assert puller.at_hand() == 1


def test_an_error_of_who_is_told_of_arrivals_is_not_lost(transfer):
    def broken(version, secs):
        raise OSError("no space left")

    with contextlib.closing(PrefetchingPuller(transfer, broken)) as puller:
        transfer.publish(1)
        with pytest.raises(OSError, match="no space left"):
            puller.pull(timeout_secs=60)


def test_a_version_that_was_withdrawn_is_no_error(transfer, puller):
    transfer.fail(WeightsTimeoutError("version 1 is offered no longer"))
    transfer.publish(1, arrives=False)
    transfer.publish(2)
    assert puller.pull(timeout_secs=60)[0] == 2


def threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


@pytest.mark.parametrize("fails", [False, True])
def test_closing_ends_the_thread_and_the_transfer(transfer, fails):
    before = threads()
    puller = PrefetchingPuller(transfer)
    transfer.publish(1)
    assert puller.newest(1, 60) == 1
    assert threads() == before + 1
    if fails:
        transfer.fail(OSError("the network is gone"))
        transfer.publish(2, arrives=False)
        with pytest.raises(OSError, match="the network is gone"):
            puller.newest(2, 60)
    puller.close()
    assert threads() == before
    assert transfer.closed


def test_closing_waits_for_the_fetch_under_way(transfer):
    puller = PrefetchingPuller(transfer)
    transfer.publish(1, arrives=False)
    assert transfer.under_way.wait(60)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        closing = pool.submit(puller.close)
        assert not closing.done()
        assert not transfer.closed
        transfer.arrive()
        closing.result(60)
    assert transfer.closed
