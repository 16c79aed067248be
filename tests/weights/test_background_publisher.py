"""Versions are made available in a thread: in order, none lost that is needed, none out of date."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading

import jax.numpy as jnp
import pytest

from rl_sync.weights.background_publisher import BackgroundPublisher, QueueRules
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError

SHORT, LONG = 0.03, 60.0


class InComputation:
    """An array that is computed when a test says so."""

    def __init__(self) -> None:
        self._computed = threading.Event()

    def compute(self) -> None:
        self._computed.set()

    def is_ready(self) -> bool:
        return self._computed.is_set()

    def block_until_ready(self):
        assert self._computed.wait(LONG)
        return self


class Shelf:
    """A place that takes versions, one after another, once a test opens it."""

    def __init__(self, is_open: bool = True) -> None:
        self.open, self.begun = threading.Event(), threading.Event()
        self.versions: list[int] = []
        self.error: BaseException | None = None
        if is_open:
            self.open.set()

    def take(self, version: int, arrays) -> None:
        self.begun.set()
        assert self.open.wait(LONG)
        if self.error is not None:
            raise self.error
        assert arrays is None or arrays[0].is_ready()
        self.versions.append(version)


@pytest.fixture
def publish():
    """Makes publishers, which end with the test."""
    with contextlib.ExitStack() as at_end:

        def make(shelf, **rules):
            publisher = BackgroundPublisher(shelf.take, "the shelf", QueueRules(**rules))

            def end():
                shelf.open.set()
                with contextlib.suppress(WeightsTransferError, WeightsTimeoutError):
                    publisher.close()

            at_end.callback(end)
            return publisher

        yield make


def hold_up(publisher, shelf, version: int = 0) -> None:
    """Brings a version under way, which stays there until the shelf is opened."""
    publisher.hand_over(version, None)
    assert shelf.begun.wait(LONG)


def until_it_fails(go_on):
    """Calls a function again and again: the error may come just after the end."""
    while True:
        go_on()


@pytest.mark.parametrize("may_skip", [False, True])
def test_versions_are_there_in_order_after_the_end(publish, may_skip):
    shelf = Shelf()
    publisher = publish(shelf, may_skip=may_skip)
    for version in range(20):
        publisher.hand_over(version, [jnp.zeros(3)])
    publisher.close()
    assert shelf.versions == sorted(set(shelf.versions))
    assert shelf.versions[-1] == 19
    assert may_skip or shelf.versions == list(range(20))


def test_handing_over_waits_while_a_version_waits_if_none_may_be_skipped(publish):
    shelf = Shelf(is_open=False)
    publisher = publish(shelf)
    hold_up(publisher, shelf)
    publisher.hand_over(1, None)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        third = pool.submit(publisher.hand_over, 2, None)
        with pytest.raises(concurrent.futures.TimeoutError):
            third.result(SHORT)
        shelf.open.set()
        third.result(LONG)
    publisher.close()
    assert shelf.versions == [0, 1, 2]


def test_a_version_that_does_not_get_its_turn_is_an_error_that_names_the_one_in_the_way(publish):
    shelf = Shelf(is_open=False)
    publisher = publish(shelf, timeout_secs=SHORT)
    hold_up(publisher, shelf)
    publisher.hand_over(1, None)
    with pytest.raises(
        WeightsTimeoutError,
        match="publish version 2: version 0 is still being saved to the shelf, and version 1 is",
    ):
        publisher.hand_over(2, None)
    with pytest.raises(WeightsTimeoutError, match="last versions: version 0 is still"):
        publisher.close()


def test_older_versions_that_wait_are_skipped_for_the_newest_one(publish):
    shelf = Shelf(is_open=False)
    publisher = publish(shelf, may_skip=True)
    hold_up(publisher, shelf)
    for version in range(1, 9):
        publisher.hand_over(version, None)
    shelf.open.set()
    publisher.close()
    assert shelf.versions == [0, 8]


def test_the_newest_computed_version_is_next_and_not_one_in_computation(publish):
    shelf = Shelf(is_open=False)
    publisher = publish(shelf, may_skip=True)
    hold_up(publisher, shelf)
    computed, later = InComputation(), InComputation()
    computed.compute()
    publisher.hand_over(1, [computed])
    publisher.hand_over(2, [later])
    shelf.begun.clear()
    shelf.open.set()
    assert shelf.begun.wait(LONG)
    later.compute()
    publisher.close()
    assert shelf.versions == [0, 1, 2]


def test_a_version_is_made_available_only_once_it_is_computed(publish):
    shelf, array = Shelf(), InComputation()
    publisher = publish(shelf)
    publisher.hand_over(0, [array])  # It does not wait for the computation.
    assert not shelf.begun.wait(SHORT)
    array.compute()
    publisher.close()
    assert shelf.versions == [0]


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_version_that_fails_is_an_error_of_the_next_one_and_of_the_end(publish, may_skip):
    shelf = Shelf(is_open=False)
    shelf.error = OSError("No space left")
    publisher = publish(shelf, may_skip=may_skip)
    hold_up(publisher, shelf)
    shelf.open.set()
    publisher._thread.join(LONG)
    for go_on in (lambda: publisher.hand_over(1, None), publisher.close):
        with pytest.raises(WeightsTransferError, match="saved to the shelf: No space left") as info:
            until_it_fails(go_on)
        assert info.value.__cause__ is shelf.error
    assert shelf.versions == []


def test_who_waits_for_its_turn_learns_of_a_failure(publish):
    shelf = Shelf(is_open=False)
    shelf.error = OSError("No space left")
    publisher = publish(shelf)
    hold_up(publisher, shelf)
    publisher.hand_over(1, None)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(publisher.hand_over, 2, None)
        shelf.open.set()
        assert isinstance(waiting.exception(LONG), WeightsTransferError)


def test_the_end_waits_for_what_is_under_way_and_what_waits(publish):
    shelf = Shelf(is_open=False)
    publisher = publish(shelf)
    hold_up(publisher, shelf)
    publisher.hand_over(1, None)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        closing = pool.submit(publisher.close)
        with pytest.raises(concurrent.futures.TimeoutError):
            closing.result(SHORT)
        shelf.open.set()
        closing.result(LONG)
    assert shelf.versions == [0, 1]
    publisher._thread.join(LONG)
    assert not publisher._thread.is_alive()


def test_processes_that_agree_make_the_same_versions_available(publish):
    """The first process decides; the second hands over its arrays later."""
    decided: dict[tuple[str, int], object] = {}
    changed = threading.Condition()

    def agreement(leads: bool):
        counts: dict[str, int] = {}

        def agree(what, choose):
            place = what, counts.setdefault(what, 0)
            counts[what] += 1
            with changed:
                if not leads:
                    assert changed.wait_for(lambda: place in decided, LONG)
                    return decided[place]
            choice = choose()
            with changed:
                decided[place] = choice
                changed.notify_all()
            return choice

        return agree

    shelves = Shelf(is_open=False), Shelf()
    first, second = (
        publish(shelf, may_skip=True, agree=agreement(leads), agree_in_thread=agreement(leads))
        for shelf, leads in zip(shelves, (True, False), strict=True)
    )
    hold_up(first, shelves[0])
    for version in range(1, 9):
        first.hand_over(version, None)
    shelves[0].open.set()
    for version in range(9):
        second.hand_over(version, None)
    first.close()
    second.close()
    assert shelves[0].versions == shelves[1].versions == [0, 8]
