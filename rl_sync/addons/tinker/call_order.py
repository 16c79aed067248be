"""The order of calls: each model's calls run in the order of their numbers, whenever they arrive.

A call is accepted at once, and its result is a future. A client may send calls out of order, and
again if it did not hear the answer. One thread does the calls of each kind; any thread may use the
registry of this module.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import http
import threading
import time
from collections.abc import Callable
from typing import Any

from rl_sync.addons.tinker.tinker_calls import CallPlace, CallRefusedError

CallResult = bytes | dict[str, Any]
"""The result of a call: an encoded message, or an object of JSON."""

MOST_CALLS = 4096
"""Maximum number of results that are kept for their clients; the oldest are dropped."""

_MOST_WAITING = 2048


@dataclasses.dataclass(frozen=True, eq=False)
class AcceptedCall:
    """A call that was accepted.

    Attributes:
      place: its place among its model's calls.
      kind: what it asks for.
      act: does it; it returns None if somebody else sets the result later.
      result: the future.
    """

    place: CallPlace
    kind: str
    act: Callable[[], CallResult | None]
    result: concurrent.futures.Future[CallResult]


class _ModelCalls:
    """The calls of a model: the next number, and calls that came before their turn."""

    def __init__(self) -> None:
        self.next, self.early = 1, dict[int, AcceptedCall]()
        self.moved = time.monotonic()


class CallOrder:
    """Calls of all models, and futures of their results.

    Args:
      gap_secs: time for which a call waits for those before it.
    """

    def __init__(self, gap_secs: float = 600.0) -> None:
        self._gap_secs = gap_secs
        self._changed = threading.Condition()
        self._lines: dict[str, _ModelCalls] = {}
        self._ready: collections.deque[AcceptedCall] = collections.deque()
        self._results: collections.OrderedDict[str, concurrent.futures.Future[CallResult]] = (
            collections.OrderedDict()
        )

    def open(self, model_id: str) -> None:
        """Begins the calls of a model with number 1."""
        with self._changed:
            self._lines[model_id] = _ModelCalls()

    def close(self, model_id: str) -> None:
        """Ends the calls of a model; those that have not begun fail."""
        with self._changed:
            line = self._lines.pop(model_id, None)
            left = [one for one in self._ready if one.place.model_id == model_id]
            for one in left:
                self._ready.remove(one)
        for one in (*left, *(() if line is None else line.early.values())):
            one.result.set_exception(CallRefusedError(f"The model {model_id} is closed."))

    def accept(self, place: CallPlace, kind: str, act: Callable[[], CallResult | None]) -> str:
        """Accepts a call of a model; returns the name of its future.

        A call that was accepted before is not done again.

        Raises:
          CallRefusedError: there is no such model, or too many calls wait.
        """
        name = f"{place.model_id}:{place.seq_id}"
        with self._changed:
            if name in self._results:
                return name
            if (line := self._lines.get(place.model_id)) is None:
                raise CallRefusedError(
                    f"There is no model {place.model_id}: its session has ended, or the server was"
                    " started again. Load its last checkpoint.",
                    http.HTTPStatus.NOT_FOUND,
                )
            call = AcceptedCall(place, kind, act, self._promise(name))
            if place.seq_id < line.next:
                call.result.set_exception(
                    CallRefusedError(
                        f"{kind} has number {place.seq_id}, and the model is at number"
                        f" {line.next}: make one client for each model."
                    )
                )
                return name
            if not line.early:
                line.moved = time.monotonic()
            line.early[place.seq_id] = call
            self._advance(line)
            self._changed.notify_all()
        return name

    def begin(
        self, name: str, place: CallPlace, kind: str, act: Callable[[], CallResult | None]
    ) -> str:
        """Accepts a call that has no number, such as one that makes a model; see `accept`."""
        with self._changed:
            if name not in self._results:
                self._ready.append(AcceptedCall(place, kind, act, self._promise(name)))
                self._changed.notify_all()
        return name

    def next(
        self, timeout_secs: float, takes: Callable[[str], bool] = lambda kind: True
    ) -> AcceptedCall | None:
        """Returns the next call whose turn has come; None if none has until the deadline.

        Args:
          takes: says whether the caller does calls of a kind; others are left to other threads.
        """
        with self._changed:
            if not any(takes(one.kind) for one in self._ready):
                self._changed.wait(timeout_secs)
            self._fail_gaps()
            found = next((one for one in self._ready if takes(one.kind)), None)
            if found is not None:
                self._ready.remove(found)
            return found

    def end(self) -> None:
        """Fails all calls that are unfinished, so that nobody waits for them any more."""
        with self._changed:
            left = [one for one in self._results.values() if not one.done()]
        for result in left:
            result.set_exception(CallRefusedError("The server has ended."))

    def result(self, name: str) -> concurrent.futures.Future[CallResult]:
        """Returns a future by its name.

        Raises:
          CallRefusedError: there is none, or its result was dropped.
        """
        with self._changed:
            if (found := self._results.get(name)) is None:
                raise CallRefusedError(
                    f"There is no result {name}: the server was started again, or the result was"
                    f" dropped, since it keeps {MOST_CALLS}.",
                    http.HTTPStatus.GONE,
                )
            return found

    def _promise(self, name: str) -> concurrent.futures.Future[CallResult]:
        unfinished = sum(not one.done() for one in self._results.values())
        if unfinished >= _MOST_WAITING:
            raise CallRefusedError(
                f"{unfinished} calls wait, as many as may: wait for results first.",
                http.HTTPStatus.TOO_MANY_REQUESTS,
            )
        while len(self._results) >= MOST_CALLS:
            done = next(name for name, one in self._results.items() if one.done())
            del self._results[done]
        self._results[name] = concurrent.futures.Future()
        return self._results[name]

    def _advance(self, line: _ModelCalls) -> None:
        while (call := line.early.pop(line.next, None)) is not None:
            self._ready.append(call)
            line.next += 1
            line.moved = time.monotonic()

    def _fail_gaps(self) -> None:
        """Fails calls that have waited too long for one that has not come."""
        for model_id, line in self._lines.items():
            if not line.early or time.monotonic() - line.moved < self._gap_secs:
                continue
            missing = line.next
            late, line.early = line.early, {}
            line.next = max(late) + 1
            for call in late.values():
                call.result.set_exception(
                    CallRefusedError(
                        f"{call.kind} has number {call.place.seq_id} among the calls of {model_id},"
                        f" and number {missing} has not come for {self._gap_secs:g} s: it was not"
                        " sent, or was refused."
                    )
                )
