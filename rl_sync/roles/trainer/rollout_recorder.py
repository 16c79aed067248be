"""The trainer's recorder: has records made of the groups of a step, beside the training.

Records never hurt a run: they are made in a thread and within a share of the time, what fails is
logged once and left out, and steps are left out where the thread does not keep up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from rl_sync.records.rollout_parts import RolloutParts
from rl_sync.roles.trainer.rollout_writer import Chosen, Figures, RolloutWriter
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.types import NO_LEASE, Group

_STEPS_BEHIND = 2
_CLOSE_SECS = 20.0
_GOLDEN = 0.6180339887498949  # Its multiples are spread evenly between whole numbers.
_log = logging.getLogger(__name__)


class Budget:
    """A share of the time that work may take, and a little ahead.

    Args:
      share: of the time.
      ahead_secs: the time that may be taken at the start, and the most that is saved up.
      clock: the time, in seconds.
    """

    def __init__(
        self,
        share: float,
        ahead_secs: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._share, self._ahead_secs, self._clock = share, ahead_secs, clock
        self._left_secs, self._at = ahead_secs, clock()
        self._each_secs = 0.0
        self._lock = threading.Lock()

    def affords(self, count: int) -> float:
        """Returns the share of so many pieces of work that there is time for, from 0 to 1."""
        with self._lock:
            now = self._clock()
            earned = self._share * (now - self._at)
            self._left_secs = min(self._ahead_secs, self._left_secs + earned)
            self._at = now
            cost = count * self._each_secs
            return 1.0 if cost <= self._left_secs else max(0.0, self._left_secs / cost)

    def spend(self, secs: float, count: int) -> None:
        """Takes note of the time that so many pieces of work took."""
        with self._lock:
            self._left_secs -= secs
            each = secs / max(1, count)
            self._each_secs = (self._each_secs + each) / 2 if self._each_secs else each


class RolloutRecorder:
    """Records the groups that a step has trained on.

    Args:
      settings: how much is recorded.
      parts: where to.
      scribe: makes the records.
      budget: of the CPU time of the recorder's thread; None for that of the settings.
    """

    def __init__(
        self,
        settings: ObserveSettings,
        *,
        parts: RolloutParts,
        scribe: RolloutWriter,
        budget: Budget | None = None,
    ):
        self._settings, self._parts, self._scribe = settings, parts, scribe
        self._budget = budget or Budget(settings.rollout_time)
        self._thread = ThreadPoolExecutor(1, "recorder")
        self._behind = threading.Semaphore(_STEPS_BEHIND)
        self._has_failed = False

    def choose(self, groups: Sequence[Group]) -> list[tuple[int, Group]]:
        """Chooses the groups of a step to record; returns each with its place in the batch."""
        return self._some([(at, one) for at, one in enumerate(groups) if one.lease_id != NO_LEASE])

    def record(self, step: int, chosen: Chosen, figures: Callable[[], Figures]) -> None:
        """Has the chosen groups of a step recorded, and does not wait for it.

        Args:
          figures: gives those of the step; called in the recorder's thread.
        """
        if not chosen.groups:
            return
        if not self._behind.acquire(blocking=False):
            self._fail(f"The rollouts of step {step} are not recorded: earlier ones still are")
            return
        self._thread.submit(self._write, step, chosen, figures)

    def close(self) -> None:
        """Waits until all is written, though not for long, and closes the file."""
        wait([self._thread.submit(self._parts.close)], timeout=_CLOSE_SECS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _some(self, groups: list[tuple[int, Group]]) -> list[tuple[int, Group]]:
        """Returns the groups that there is room and time for, at least one unless none is wanted.

        They are chosen by their ordinals, so that they are spread evenly over the prompts.
        """
        whole = self._parts.size_bytes < self._settings.rollout_bytes
        share = 1.0 if whole else self._settings.rollout_share
        if not groups or not share:
            return []
        share *= self._budget.affords(sum(len(group.tokens) for _, group in groups))
        some = [one for one in groups if _place(one[1]) < share]
        return some or [min(groups, key=lambda one: _place(one[1]))]

    def _write(self, step: int, chosen: Chosen, figures: Callable[[], Figures]) -> None:
        started, count = time.thread_time(), 0
        try:
            lines = self._scribe.lines(step, chosen, figures())
            count = len(lines)
            self._parts.write(step, lines)
        except Exception as error:
            self._fail(f"The rollouts of step {step} could not be recorded", error)
        finally:
            self._budget.spend(time.thread_time() - started, count)
            self._behind.release()

    def _fail(self, what: str, error: Exception | None = None) -> None:
        if not self._has_failed:
            _log.warning("%s. The run goes on without them.", what, exc_info=error)
        self._has_failed = True


def _place(group: Group) -> float:
    """Returns a number from 0 to 1 that depends on the group's prompt alone."""
    return group.ordinal * _GOLDEN % 1
