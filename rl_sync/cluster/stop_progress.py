"""Progress of a trainer that was asked to stop and is about to save a snapshot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rl_sync.messages.run_status import RoleStatus, RunStatus
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import TRAINER

_WORK = {
    SpanKind.SFT,
    SpanKind.TRAIN,
    SpanKind.TRAIN_AGAIN,
    SpanKind.COMPILE,
    SpanKind.EVALUATION,
    SpanKind.SNAPSHOT,
    SpanKind.REPORT,
}


def trainer_of(status: RunStatus | None) -> RoleStatus | None:
    """Returns the trainer's part of a status; None before its first heartbeat."""
    roles = () if status is None else status.roles
    return next((role for role in roles if role.role == TRAINER), None)


class StopProgress:
    """Measures how long the trainer has made no progress.

    A change of activity is progress. Computing and saving are progress too, since a train step may
    take longer than any deadline. A trainer that sends no heartbeats, waits, or moves weights makes
    no progress.

    Args:
      most_secs: time after which computing or saving no longer counts as progress.
    """

    def __init__(
        self, most_secs: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_secs, self._clock = most_secs, clock
        self._moved_secs = clock()
        self._seen: RoleStatus | None = None

    def see(self, status: RunStatus | None) -> None:
        """Takes the current status of the run; None if the master does not answer."""
        before, now = self._seen, trainer_of(status)
        if now is None:
            return
        turned = before is None or (before.activity, before.step) != (now.activity, now.step)
        # The time in an activity grows only with heartbeats.
        lives = before is None or now.since_secs > before.since_secs
        works = now.activity in _WORK and now.since_secs <= self._most_secs
        if turned or (lives and works):
            self._moved_secs = self._clock()
        self._seen = now

    @property
    def still_secs(self) -> float:
        """Seconds since the last progress."""
        return self._clock() - self._moved_secs
