"""The clock port: time, and threads that wait in it.

Roles take both from their session's clock. The system's clock passes them on from `time`,
`threading`, `queue` and `concurrent.futures`; the clock of a simulation runs the same code in
virtual time (`rl_sync.simulation.virtual_clock`).
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Thread(Protocol):
    """A thread that runs; see `threading.Thread`."""

    def join(self, timeout: float | None = None) -> None:
        """Waits until it ends."""


class Flag(Protocol):
    """A flag; see `threading.Event`."""

    def set(self) -> None:
        """Raises the flag."""

    def is_set(self) -> bool:
        """Says whether it is raised."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for it, and says whether it is raised."""


class Semaphore(Protocol):
    """A count of free places; see `threading.Semaphore`."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Takes a place; returns False if there is none in time."""

    def release(self) -> None:
        """Frees a place."""


class Mailbox(Protocol[T]):
    """A queue between threads; see `queue.Queue`."""

    def put(self, item: T) -> None:
        """Adds an item."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Takes the oldest item.

        Raises:
          queue.Empty: there is none in time.
        """


class Future(Protocol[T]):
    """The result of a function that a pool runs; see `concurrent.futures.Future`."""

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result, and returns it, or raises the function's error."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end, and returns the function's error, if it has raised one."""

    def done(self) -> bool:
        """Says whether the function has ended."""

    def set_result(self, result: T) -> None:
        """Ends a future that no pool runs."""

    def set_exception(self, exception: BaseException) -> None:
        """Ends it with an error."""

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Lets the thread that ends the future call a function with it."""


class Pool(Protocol):
    """Threads that run functions in the order of submission; see `ThreadPoolExecutor`."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Lets a thread run a function."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more functions."""


class Clock(Protocol):
    """Time and threads of a role."""

    def now(self) -> float:
        """Returns seconds that never go back, from an arbitrary start."""

    def sleep(self, secs: float) -> None:
        """Waits."""

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """Starts a thread, which ends with the process."""

    def pool(self, threads: int, name: str) -> Pool:
        """Makes a pool of threads."""

    def event(self) -> Flag:
        """Makes a flag that is not raised."""

    def semaphore(self, places: int) -> Semaphore:
        """Makes a count of free places."""

    def mailbox(self) -> Mailbox[Any]:
        """Makes an empty queue between threads."""

    def future(self) -> Future[Any]:
        """Makes a future that no pool runs."""


class SystemClock:
    """The clock of a real process."""

    def now(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def sleep(self, secs: float) -> None:
        """See `Clock`."""
        time.sleep(secs)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """See `Clock`."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, threads: int, name: str) -> Pool:
        """See `Clock`."""
        return concurrent.futures.ThreadPoolExecutor(threads, name)

    def event(self) -> Flag:
        """See `Clock`."""
        return threading.Event()

    def semaphore(self, places: int) -> Semaphore:
        """See `Clock`."""
        return threading.Semaphore(places)

    def mailbox(self) -> Mailbox[Any]:
        """See `Clock`."""
        return queue.Queue[Any]()

    def future(self) -> Future[Any]:
        """See `Clock`."""
        return concurrent.futures.Future[Any]()
