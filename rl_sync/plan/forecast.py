"""Forecasts the timeline of all roles of a run from durations of rollouts, train steps and syncs.

The schedule's rules are followed event by event, so that waits come out as in a run with these
durations. These are pure functions of numbers, in any unit of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from rl_sync.schedule import SyncSchedule

Kind = Literal["rollout", "train", "sync"]


class ForecastSpan(NamedTuple):
    """An uninterrupted piece of a role's work.

    Attributes:
      role: 0 for the trainer, 1, 2, … for the explorers.
      kind: kind of work.
      step: explorer step of a rollout, otherwise trainer step.
      version: version of the weights that a rollout uses, or that a sync brings.
      begin, end: times since the start.
    """

    role: int
    kind: Kind
    step: int
    version: int
    begin: float
    end: float


class Durations(NamedTuple):
    """Durations of rollouts, train steps and syncs.

    Attributes:
      rollout: returns the duration of an explorer step from its number and the explorer (1, 2, …);
        if explorers go at their own pace, the explorer generates a whole batch alone.
      train: returns the duration of a trainer step from its number.
      sync: duration of a weight transfer, on each side that takes part.
    """

    rollout: Callable[[int, int], float]
    train: Callable[[int], float]
    sync: float


class Forecast(NamedTuple):
    """The forecast of a run.

    Attributes:
      spans: all work, by role and begin.
      ends: end of each trainer step, beginning with step 1.
    """

    spans: list[ForecastSpan]
    ends: list[float]

    @property
    def step_secs(self) -> float:
        """Average time of a trainer step, waits included, over the second half of the steps."""
        first = len(self.ends) // 2
        return (self.ends[-1] - self.ends[first - 1]) / (len(self.ends) - first)

    def busy(self, role: int) -> float:
        """Returns the fraction of time that a role works, over the second half of the steps."""
        begin, end = self.ends[len(self.ends) // 2 - 1], self.ends[-1]
        worked = sum(
            max(0.0, min(span.end, end) - max(span.begin, begin))
            for span in self.spans
            if span.role == role
        )
        return worked / (end - begin)


def forecast(
    schedule: SyncSchedule, explorers: int, meets: bool, durations: Durations, steps: int
) -> Forecast:
    """Forecasts a run.

    Args:
      schedule: sync schedule.
      explorers: number of explorers.
      meets: whether trainer and explorers meet at a sync, as in a collective transfer.
      steps: number of trainer steps, at least 2.
    """
    run = _Run(schedule, explorers, meets, durations)
    for t in range(1, steps + 1):
        run.train(t, last=t == steps)
    order = sorted(run.spans, key=lambda span: (span.role, span.begin))
    return Forecast(order, run.ends)


class _Run:
    """The state of a simulated run."""

    def __init__(
        self, schedule: SyncSchedule, explorers: int, meets: bool, durations: Durations
    ) -> None:
        self._schedule, self._meets, self._durations = schedule, meets, durations
        self.spans: list[ForecastSpan] = []
        self.ends: list[float] = []
        self._now = [0.0] * (explorers + 1)  # Current time of each role, by its number.
        self._held = [0] * (explorers + 1)
        self._published = {0: 0.0}
        self._done: dict[int, float] = {}
        self._generated = 0

    def train(self, t: int, last: bool) -> None:
        """Takes a trainer step, and lets explorers continue up to its end."""
        exact = self._schedule.pull == "exact"
        while self._generated < t and self._generate():
            pass
        done = self._done[t] if exact else sorted(self._done.values())[t - 1]
        begin = max(self._now[0], done)
        end = begin + self._durations.train(t)
        self._do(ForecastSpan(0, "train", t, t - 1, begin, end))
        self.ends.append(self._now[0])
        if self._schedule.publishes_after(t) and not last:
            self._publish(t)
        while min(self._now[1:]) < self._now[0] and self._generate():
            pass

    def _publish(self, t: int) -> None:
        if not self._meets:
            self._published[t] = self._now[0]
            return
        # All roles meet: explorers come when they have finished everything that needs older
        # weights.
        while self._generated < self._schedule.first_user(t) - 1:
            self._generate()
        begin = max(self._now)
        for role in range(len(self._now)):
            self._do(ForecastSpan(role, "sync", t, t, begin, begin + self._durations.sync))
            self._held[role] = t
        self._published[t] = begin

    def _generate(self) -> bool:
        """Generates the next batch; False if its weights are not there yet."""
        lockstep = self._schedule.pull == "exact"
        return self._generate_together() if lockstep else self._generate_alone()

    def _generate_together(self) -> bool:
        """Lets all explorers generate their parts of the next explorer step."""
        e = self._generated + 1
        version = self._schedule.exact_version(e)
        if version not in self._published:
            return False
        for explorer in range(1, len(self._now)):
            self._fetch(explorer, version)
            self._roll_out(explorer, e, version)
        self._generated, self._done[e] = e, max(self._now[1:])
        return True

    def _generate_alone(self) -> bool:
        """Lets the first free explorer generate the next batch."""
        e = self._generated + 1
        explorer = min(range(1, len(self._now)), key=lambda role: self._now[role])
        allowed = [v for v in self._published if self._schedule.may_start(e, v)]
        if not allowed:
            return False
        start = max(self._now[explorer], self._published[min(allowed)])
        version = max(v for v, when in self._published.items() if when <= start)
        self._fetch(explorer, version)
        self._roll_out(explorer, e, version)
        self._generated, self._done[e] = e, self._now[explorer]
        return True

    def _fetch(self, explorer: int, version: int) -> None:
        if self._held[explorer] == version:
            return
        self._held[explorer] = version
        begin = max(self._now[explorer], self._published[version])
        end = begin + self._durations.sync
        self._do(ForecastSpan(explorer, "sync", version, version, begin, end))

    def _roll_out(self, explorer: int, e: int, version: int) -> None:
        begin = self._now[explorer]
        end = begin + self._durations.rollout(e, explorer)
        self._do(ForecastSpan(explorer, "rollout", e, version, begin, end))

    def _do(self, span: ForecastSpan) -> None:
        self._now[span.role] = span.end
        self.spans.append(span)
