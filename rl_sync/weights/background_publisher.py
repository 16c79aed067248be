"""A queue of published versions, and the thread that makes each of them available.

All processes of a trainer make the same versions available, in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax

from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError

_MOST_WAITING = 2
_NOTHING_YET = -1
_IDLE_SECS = 30.0

T = TypeVar("T")


class PendingVersion(NamedTuple, Generic[T]):
    """A version that waits; its arrays may still be in computation on the devices."""

    version: int
    arrays: T
    awaited: object

    @property
    def computed(self) -> bool:
        """Says whether all arrays are there."""
        return all(array.is_ready() for array in jax.tree.leaves(self.awaited))


class QueueRules(NamedTuple):
    """Rules of a queue of versions.

    Attributes:
      may_skip: whether a newer version may replace one that is not under way yet. Use it for latest
        pulls, but not for exact pulls, which need every version.
      timeout_secs: deadline of `hand_over` for its turn, and of `close` for the last version.
      agree, agree_in_thread: let the trainer's processes agree, in the program and in the thread.
    """

    may_skip: bool = False
    timeout_secs: float = 300.0
    agree: Agree = alone
    agree_in_thread: Agree = alone


class BackgroundPublisher(Generic[T]):
    """Makes versions available in its own thread; the trainer only hands over device arrays.

    At most one version is under way and one waits; while one waits, `hand_over` blocks. If versions
    may be skipped, two may wait, and a third replaces the older one. Two are needed, since the
    newest may still be in computation when the one before it is there already.

    Args:
      make_available: makes a version available; called in the thread, once its arrays are computed.
      where: where versions are made available, for errors.
      rules: rules of the queue.
      awaited: returns the arrays that must be computed before a version is under way; by default,
        all.
    """

    def __init__(
        self,
        make_available: Callable[[int, T], None],
        where: str,
        rules: QueueRules = QueueRules(),  # noqa: B008
        *,
        awaited: Callable[[T], object] = lambda arrays: arrays,
    ) -> None:
        self._make_available, self._where = make_available, where
        self._rules, self._awaited = rules, awaited
        self._changed = threading.Condition()
        self._pending: dict[int, PendingVersion[T]] = {}
        self._under_way: int | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="weights-publisher", daemon=True)
        self._thread.start()

    def hand_over(self, version: int, arrays: T) -> None:
        """Queues a version, without waiting for its computation.

        Raises:
          WeightsTimeoutError: the version before this one still waits.
          WeightsTransferError: an earlier version could not be made available.
        """
        pending = PendingVersion(version, arrays, self._awaited(arrays))
        with self._changed:
            if not self._rules.may_skip:
                self._wait_until(lambda: not self._pending, f"to publish version {version}")
            self._raise_error()
            assert not self._closed, "hand_over() after close()"
            self._pending[version] = pending
        rules = self._rules
        skipped = rules.agree("versions to skip", self._skip) if rules.may_skip else []
        with self._changed:
            for older in skipped:
                self._pending.pop(older, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until all versions are available, and stops the thread.

        Raises:
          WeightsTimeoutError: this takes longer than the deadline.
          WeightsTransferError: a version could not be made available.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wait_until(
                lambda: not self._pending and self._under_way is None, "to save the last versions"
            )
            self._raise_error()

    def _wait_until(self, ready: Callable[[], bool], purpose: str) -> None:
        done = self._changed.wait_for(
            lambda: ready() or self._error is not None, self._rules.timeout_secs
        )
        if not done:
            waiting = next(iter(self._pending), None)
            raise WeightsTimeoutError(
                f"Waited {self._rules.timeout_secs:.0f} s {purpose}: version {self._under_way} is"
                f" still being saved to {self._where}"
                + (f", and version {waiting} is next." if waiting is not None else ".")
            )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise WeightsTransferError(
                f"Weights could not be saved to {self._where}: {self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            while (pending := self._next()) is not None:
                jax.block_until_ready(pending.awaited)
                self._make_available(pending.version, pending.arrays)
                with self._changed:
                    self._under_way = None
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _skip(self) -> list[int]:
        """Returns the oldest waiting versions if too many wait."""
        with self._changed:
            return [version for version in self._pending if version != self._under_way][
                :-_MOST_WAITING
            ]

    def _next(self) -> PendingVersion[T] | None:
        chosen: int | None = _NOTHING_YET
        while chosen == _NOTHING_YET:
            chosen = self._rules.agree_in_thread("the next version", self._choose)
        if chosen is None:
            return None
        with self._changed:
            # This process may lag behind the one that chose; it will publish the version too.
            self._wait_until(lambda: chosen in self._pending, f"for version {chosen}")
            self._under_way = chosen
            pending = self._pending.pop(chosen)
            for older in [version for version in self._pending if version < chosen]:
                del self._pending[older]
            self._changed.notify_all()
            return pending

    def _choose(self) -> int | None:
        """Returns the version that is next; None at the end, or `_NOTHING_YET` after some time."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed, _IDLE_SECS)
            if not self._pending:
                return None if self._closed else _NOTHING_YET
            computed = sum(pending.computed for pending in self._pending.values())
            # The newest computed version; if none is computed, the oldest, which will be computed
            # first.
            self._under_way = list(self._pending)[max(computed - 1, 0)]
            return self._under_way
