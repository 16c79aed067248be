"""Delivery of metrics to a backend from a thread of its own, so that the run never waits for it."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence

from rl_sync.records.backends.backend import Backend, MetricPoint

MOST_POINTS = 1000
"""Maximum number of points that wait for a backend; newer ones are dropped until it catches up."""

_Order = Callable[[Backend], None]
_log = logging.getLogger(__name__)


class BackendThread:
    """Starts a backend and gives it points in order.

    A backend that raises is dropped, and the log says why, once. A slow backend misses points; the
    log says so once, with their number at the end. Only the method `wait` waits.

    Args:
      name: name of the backend in messages.
      start: function that starts it.
      most_points: see `MOST_POINTS`.
    """

    def __init__(self, name: str, start: Callable[[], Backend], *, most_points: int = MOST_POINTS):
        self._name, self._most = name, most_points
        self._orders: collections.deque[_Order] = collections.deque()
        self._changed = threading.Condition()
        self._lost = 0
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._work, args=(start,), name=f"metrics for {name}", daemon=True
        )
        self._thread.start()

    def log(self, point: MetricPoint) -> None:
        """Adds a point; see `Backend.log`."""
        self._put(lambda backend: backend.log(point))

    def resume(self, step: int, earlier: Sequence[MetricPoint]) -> None:
        """Marks where the run resumes; see `Backend.resume`."""
        self._put(lambda backend: backend.resume(step, earlier))

    def close(self, is_well: bool) -> None:
        """Lets the backend finish after all waiting points; later ones are dropped.

        Closing twice is fine: the first time counts.
        """
        with self._changed:
            if not self._is_closed:
                self._orders.append(lambda backend: backend.finish(is_well))
                self._is_closed = True
                self._changed.notify()

    def wait(self, deadline: float) -> bool:
        """Waits until the backend has finished or was dropped; returns whether it did so in time.

        Args:
          deadline: time of `time.monotonic` after which the wait ends.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            if self._thread.is_alive():
                _log.warning(
                    "%s has not taken all metrics in time and is left alone: it lacks its end and"
                    " %d records or more. metrics.jsonl has them all.",
                    self._name,
                    self._lost + max(0, len(self._orders) - 1),
                )
                return False
            if self._lost:
                _log.warning("%s was too slow: it lacks %d records.", self._name, self._lost)
                self._lost = 0
            return True

    def _put(self, order: _Order) -> None:
        with self._changed:
            if self._is_closed:
                return
            if len(self._orders) < self._most:
                self._orders.append(order)
                self._changed.notify()
                return
            if not self._lost:
                _log.warning(
                    "%s does not keep up: %d records wait for it, and newer ones are left out until"
                    " it catches up. metrics.jsonl has them all.",
                    self._name,
                    self._most,
                )
            self._lost += 1

    def _next(self) -> _Order | None:
        """Returns the next order; None after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closed)
            return self._orders.popleft() if self._orders else None

    def _work(self, start: Callable[[], Backend]) -> None:
        try:
            backend = start()
            while (order := self._next()) is not None:
                order(backend)
        except (Exception, SystemExit) as error:  # A backend must not end or delay a run.
            with self._changed:
                self._is_closed = True
                self._orders.clear()
                self._lost = 0
            _log.warning(
                "%s gets no more metrics: %s. The run goes on; metrics.jsonl has them all.",
                self._name,
                _line(error),
            )


def _line(error: BaseException) -> str:
    """Writes an error on one line."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}"
