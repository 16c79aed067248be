"""A bound on the completions that are being judged or wait for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class QueueTimeoutError(TimeoutError):
    """Raised when the queue of completions to judge stayed full for too long."""


class Room:
    """A queue's room for completions, which several threads share.

    Args:
      most: the maximum number of completions; a larger batch waits until the queue is empty.
    """

    def __init__(self, most: int) -> None:
        self._most, self._queued = most, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, count: int, timeout_secs: float | None) -> Iterator[None]:
        """Takes room for completions, and gives it back at the end.

        Args:
          timeout_secs: the longest wait for room; None waits forever.

        Raises:
          QueueTimeoutError: there was no room in time.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._queued or self._queued + count <= self._most, timeout_secs
            ):
                raise QueueTimeoutError(
                    f"{count} completions waited {timeout_secs:g} s for room among"
                    f" reward.queue={self._most} that are being judged."
                )
            self._queued += count
        try:
            yield
        finally:
            with self._changed:
                self._queued -= count
                self._changed.notify_all()
