"""The clock of a simulation: threads of roles run in virtual time, one after the other.

Each thread is a greenlet. It runs until it waits in the clock, and goes on once a time has come, or
another thread has done something. So the code of roles runs as it is, deterministic in the order of
the event queue, and a simulated hour takes as long as what happens in it.
"""

from __future__ import annotations

import collections
import functools
import math
import queue
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import greenlet

T = TypeVar("T")

After = Callable[[float, Callable[[], None]], None]
"""Lets a function run after so many virtual seconds."""


class LifeEndedError(BaseException):
    """The process of the thread has died: nothing that it does has an effect any more."""


class VirtualClock:
    """The clock of one life of a simulated process; see `Clock`.

    Args:
      now: returns the virtual time.
      after: lets a function run after so many seconds, if the life lasts until then.
      failed: called with the error that has ended a thread.
    """

    def __init__(
        self, now: Callable[[], float], after: After, failed: Callable[[BaseException], None]
    ) -> None:
        self._now, self._after, self._failed = now, after, failed
        self._threads: set[greenlet.greenlet] = set()
        self._is_over = False

    def now(self) -> float:
        """See `Clock`."""
        return self._now()

    def sleep(self, secs: float) -> None:
        """See `Clock`."""
        self.wait(Waiters(), secs)

    def thread(self, target: Callable[[], None], name: str) -> VirtualThread:
        """See `Clock`."""
        del name
        thread = VirtualThread(self)

        def run() -> None:
            try:
                target()
            except LifeEndedError:
                pass
            except BaseException as error:
                if self._is_over:
                    return
                self._failed(error)
            finally:
                self._threads.discard(greenlet.getcurrent())
                thread.end()

        one = greenlet.greenlet(run)
        self._threads.add(one)
        self._after(0.0, functools.partial(self._resume, one))
        return thread

    def pool(self, threads: int, name: str) -> VirtualPool:
        """See `Clock`."""
        return VirtualPool(self, threads, name)

    def event(self) -> VirtualEvent:
        """See `Clock`."""
        return VirtualEvent(self)

    def semaphore(self, places: int) -> VirtualSemaphore:
        """See `Clock`."""
        return VirtualSemaphore(self, places)

    def mailbox(self) -> VirtualMailbox:
        """See `Clock`."""
        return VirtualMailbox(self)

    def future(self) -> VirtualFuture:
        """See `Clock`."""
        return VirtualFuture(self)

    def die(self) -> None:
        """Ends all threads where they are; whatever they still do has no effect."""
        self._is_over = True
        current = greenlet.getcurrent()
        for one in [*self._threads]:
            if one is not current and one:  # One that has not begun never will.
                one.parent = current
                one.throw(LifeEndedError)
        self._threads.clear()

    def require_life(self) -> None:
        """Raises `LifeEndedError` once the life has ended."""
        if self._is_over:
            raise LifeEndedError

    def wait(self, waiters: Waiters, timeout: float | None = None) -> None:
        """Lets the current thread wait until it is woken, or the time is over.

        Raises:
          LifeEndedError: the process dies meanwhile.
        """
        self.require_life()
        own = greenlet.getcurrent()
        ticket = waiters.join(own)
        if timeout is not None and timeout < math.inf:
            self._after(max(0.0, timeout), functools.partial(self._wake, waiters, ticket))
        assert own.parent is not None, "only threads of the clock wait in it"
        own.parent.switch()
        self.require_life()

    def wait_for(
        self, waiters: Waiters, is_so: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        """Lets the current thread wait until something is so; returns whether it is."""
        until = None if timeout is None else self._now() + timeout
        while not is_so():
            left = None if until is None else until - self._now()
            if left is not None and left <= 0:
                return False
            self.wait(waiters, left)
        return True

    def wake_all(self, waiters: Waiters) -> None:
        """Lets all threads go on that wait."""
        if not self._is_over:
            for ticket in waiters.tickets():
                self._after(0.0, functools.partial(self._wake, waiters, ticket))

    def _wake(self, waiters: Waiters, ticket: int) -> None:
        one = waiters.leave(ticket)
        if one is not None:
            self._resume(one)

    def _resume(self, one: greenlet.greenlet) -> None:
        """Lets a thread run until it waits or ends; called by the event queue."""
        if not self._is_over:
            one.parent = greenlet.getcurrent()
            one.switch()


class Waiters:
    """Threads that wait for the same thing, each with a ticket."""

    def __init__(self) -> None:
        self._waiting: dict[int, greenlet.greenlet] = {}
        self._tickets = 0

    def join(self, one: greenlet.greenlet) -> int:
        """Adds a thread; returns its ticket."""
        self._tickets += 1
        self._waiting[self._tickets] = one
        return self._tickets

    def leave(self, ticket: int) -> greenlet.greenlet | None:
        """Removes a thread; None if it has left before."""
        return self._waiting.pop(ticket, None)

    def tickets(self) -> list[int]:
        """Returns the tickets in the order in which the threads came."""
        return [*self._waiting]


class VirtualThread:
    """See `Thread`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._over = VirtualEvent(clock)

    def join(self, timeout: float | None = None) -> None:
        """See `Thread`."""
        self._over.wait(timeout)

    def end(self) -> None:
        """Lets go whoever waits for the end."""
        self._over.set()


class VirtualEvent:
    """See `Flag`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._waiters, self._is_set = clock, Waiters(), False

    def set(self) -> None:
        """See `Flag`."""
        self._is_set = True
        self._clock.wake_all(self._waiters)

    def is_set(self) -> bool:
        """See `Flag`."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """See `Flag`."""
        return self._clock.wait_for(self._waiters, self.is_set, timeout)


class VirtualSemaphore:
    """See `Semaphore`."""

    def __init__(self, clock: VirtualClock, places: int) -> None:
        self._clock, self._waiters, self._places = clock, Waiters(), places

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """See `Semaphore`."""
        wait = timeout if blocking else 0.0
        if not self._clock.wait_for(self._waiters, lambda: self._places > 0, wait):
            return False
        self._places -= 1
        return True

    def release(self) -> None:
        """See `Semaphore`."""
        self._places += 1
        self._clock.wake_all(self._waiters)


class VirtualMailbox:
    """See `Mailbox`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._waiters = clock, Waiters()
        self._items = collections.deque[Any]()

    def put(self, item: Any) -> None:
        """See `Mailbox`."""
        self._items.append(item)
        self._clock.wake_all(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See `Mailbox`."""
        wait = timeout if block else 0.0
        if not self._clock.wait_for(self._waiters, lambda: bool(self._items), wait):
            raise queue.Empty
        return self._items.popleft()


class VirtualFuture:
    """See `Future`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._waiters = clock, Waiters()
        self._is_done, self._result = False, None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        """See `Future`."""
        return self._is_done

    def result(self, timeout: float | None = None) -> Any:
        """See `Future`."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future`."""
        if not self._clock.wait_for(self._waiters, self.done, timeout):
            raise TimeoutError
        return self._error

    def set_result(self, result: Any) -> None:
        """See `Future`."""
        self._result = result
        self._end()

    def set_exception(self, exception: BaseException) -> None:
        """See `Future`."""
        self._error = exception
        self._end()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """See `Future`."""
        if self._is_done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def _end(self) -> None:
        self._is_done = True
        for fn in self._callbacks:
            fn(self)
        self._clock.wake_all(self._waiters)


class VirtualPool:
    """See `Pool`."""

    def __init__(self, clock: VirtualClock, threads: int, name: str) -> None:
        self._clock, self._name, self._idle = clock, name, threads
        self._queue = collections.deque[tuple[VirtualFuture, Callable[[], Any]]]()
        self._unfinished: list[VirtualFuture] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> VirtualFuture:
        """See `Pool`."""
        future = VirtualFuture(self._clock)
        self._unfinished = [*(one for one in self._unfinished if not one.done()), future]
        self._queue.append((future, functools.partial(fn, *args, **kwargs)))
        if self._idle:
            self._idle -= 1
            self._clock.thread(self._work, self._name)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Pool`."""
        if cancel_futures:
            while self._queue:
                self._queue.popleft()[0].set_exception(CancelledError())
        if wait:
            for future in self._unfinished:
                future.exception()

    def _work(self) -> None:
        while self._queue:
            future, run = self._queue.popleft()
            try:
                result = run()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._idle += 1
