"""The trainer's recorder, which writes records of a step's groups during the training.

Records never harm a run. A thread writes them, and uses only a share of the time. If it fails, the
failure is logged once, and the records are left out. If it cannot keep up, steps are left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.roles.trainer.rollout_writer import Chosen, Figures, RolloutWriter
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.types import NO_LEASE, Group

_STEPS_BEHIND = 2
_CLOSE_SECS = 20.0
_GOLDEN = 0.6180339887498949  # The golden ratio minus 1: its multiples modulo 1 are spread evenly.
_log = logging.getLogger(__name__)


class Budget:
    """A budget of time for background work: a share of the time, with some saved up.

    Args:
      share: share of the time.
      ahead_secs: time that is available at the start, and the most that can be saved up.
      clock: returns the time in seconds.
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
        """Returns the fraction, from 0 to 1, of `count` pieces of work that the budget allows."""
        with self._lock:
            now = self._clock()
            earned = self._share * (now - self._at)
            self._left_secs = min(self._ahead_secs, self._left_secs + earned)
            self._at = now
            cost = count * self._each_secs
            return 1.0 if cost <= self._left_secs else max(0.0, self._left_secs / cost)

    def spend(self, secs: float, count: int) -> None:
        """Records the time that `count` pieces of work took."""
        with self._lock:
            self._left_secs -= secs
            each = secs / max(1, count)
            self._each_secs = (self._each_secs + each) / 2 if self._each_secs else each


class RolloutRecorder:
    """Records the groups that a step has trained on.

    Args:
      settings: amount of records.
      parts: files to write to.
      scribe: makes the records.
      budget: budget of CPU time of the recorder's thread; None for the one in the settings.
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
        """Chooses the groups of a step to record; returns each with its index in the batch."""
        return self._some([(at, one) for at, one in enumerate(groups) if one.lease_id != NO_LEASE])

    def record(self, step: int, chosen: Chosen, figures: Callable[[], Figures]) -> None:
        """Queues the chosen groups of a step for recording, without waiting.

        Args:
          figures: returns per-token values of the step; called in the recorder's thread.
        """
        if not chosen.groups:
            return
        if not self._behind.acquire(blocking=False):
            self._fail(f"The rollouts of step {step} are not recorded: earlier ones still are")
            return
        self._thread.submit(self._write, step, chosen, figures)

    def close(self) -> None:
        """Waits for a limited time until all records are written, and closes the file."""
        wait([self._thread.submit(self._parts.close)], timeout=_CLOSE_SECS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _some(self, groups: list[tuple[int, Group]]) -> list[tuple[int, Group]]:
        """Returns the groups to record within the budget: at least one, if any are to be recorded.

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
            _log.warning("%s. The run continues without them.", what, exc_info=error)
        self._has_failed = True


def _place(group: Group) -> float:
    """Returns a number from 0 to 1 that depends only on the group's prompt."""
    return group.ordinal * _GOLDEN % 1
