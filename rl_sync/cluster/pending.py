"""Pending calls: slow calls, made of calls that take at most a second.

The caller sends the call once, with a key, and then polls until the result is there; a result that
is ready soon comes with the first reply. Replies tell how much was done, so that the caller can
distinguish slow work from a standstill.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from rl_sync.cluster.rpc import CallHandlers
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call, Handler

_POLL_SECS = 1.0

R = TypeVar("R")


@record
class Pending(NamedTuple):
    """Reply to a call whose result is not there yet.

    Attributes:
      progress: a number that grows as long as work is done, for this call or for others.
      is_known: whether the call is in progress; if not, as after a restart, it must be sent again.
    """

    progress: int
    is_known: bool = True


@dataclasses.dataclass(frozen=True)
class Await(Call[Any]):
    """Sends a slow call, or polls for its result; the reply may be `Pending`.

    Attributes:
      key: identifies the call, which is executed once, however often it is sent.
      call: the call; None once it was sent.
      poll_secs: maximum wait for the result.
    """

    key: str
    call: Any
    poll_secs: float


class PendingCalls:
    """Executes slow calls, each in a thread.

    Args:
      handlers: handlers of the kinds of calls.
      threads: number of calls that are executed at once; the others wait.
      progress: returns the progress that `Pending` reports.
      kept: number of results that are kept in case their replies were lost. With 0 a result is
        returned only once.
      tells_failures: whether failures are reported to callers. If not, their calls stay pending:
        the run is then being stopped, and callers learn it in another way.
    """

    def __init__(
        self,
        *handlers: Handler,
        threads: int,
        progress: Callable[[], int],
        kept: int = 0,
        tells_failures: bool = True,
    ) -> None:
        self._desk, self._progress = CallHandlers(*handlers), progress
        self._kept, self._tells_failures = kept, tells_failures
        self._lock = threading.Lock()
        self._answers = collections.OrderedDict[str, concurrent.futures.Future[Any]]()
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="pending")

    def handler(self) -> Handler:
        """Returns the handler of `Await` for these calls."""
        return Await.answered_by(self.answer)

    def answer(self, call: Await) -> Any:
        """Starts a new call, or finds one that was sent before, and waits for its result.

        Raises:
          Exception: the call failed with this error; it may then be sent again.
        """
        with self._lock:
            found = self._answers.get(call.key)
            if found is None and call.call is not None:
                found = self._begun(call.key, call.call)
        if found is None:
            return Pending(self._progress(), is_known=False)
        concurrent.futures.wait([found], call.poll_secs)
        if not found.done():
            return Pending(self._progress())
        has_failed = found.cancelled() or found.exception() is not None
        if has_failed and not self._tells_failures:
            time.sleep(call.poll_secs)
            return Pending(self._progress())
        if has_failed or not self._kept:
            with self._lock:
                self._answers.pop(call.key, None)
        return found.result()

    def close(self) -> None:
        """Drops the calls that no thread has started."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begun(self, key: str, call: Call[Any]) -> concurrent.futures.Future[Any]:
        if self._kept:
            done = [key for key, one in self._answers.items() if one.done()]
            for old in done[: max(0, len(done) - self._kept)]:
                del self._answers[old]
        self._answers[key] = begun = self._threads.submit(self._desk, call)
        return begun


def await_answer(
    send: Callable[[Await], Any],
    call: Call[R],
    between: Callable[[int], None],
    key: str | None = None,
) -> R:
    """Sends a slow call, and waits for its result.

    Args:
      send: sends a call, and returns the reply.
      between: called with the progress as long as the result is not there; it ends the wait by
        raising an error.
      key: see `Await`; a unique one by default.
    """
    key = key or secrets.token_hex(8)
    unsent: Call[R] | None = call
    while True:
        reply = send(Await(key, unsent, _POLL_SECS))
        if not isinstance(reply, Pending):
            return reply
        unsent = None if reply.is_known else call
        between(reply.progress)
