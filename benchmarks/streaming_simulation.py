"""Streaming with a small bound on staleness, in virtual time: which groups wait for whom.

`benchmarks/streaming.py --simulated` prints the table of it. The master's `transition` decides;
everything else is simulated. One explorer has slots for the groups of a batch, of 4 completions
each, and each occupied slot gives a token in each decode step. The trainer takes no time, and
publishes at once. A judgement takes a constant time.

- *leases*: no streaming; a lease is a batch, and the next one begins when all of it is generated.
- *oldest under way*: while a group is unfinished, others begin only as long as they can be trained
  before it becomes too stale; the trainer takes groups first in, first out.
- *by deadline*: what `transition` does.
- *abort*: as by deadline, but the trainer waits for no group that is due and unfinished. The
  group's tokens are thrown away, and its prompt is leased again.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.roles.master import transition
from rl_sync.roles.master.deadlines import deadline_of
from rl_sync.roles.master.events import (
    BatchRequested,
    BatchTrained,
    Event,
    GrantBatch,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    LeaseRequested,
    MasterSettings,
    Position,
    Started,
    VersionPublished,
)
from rl_sync.schedule import resolve
from rl_sync.simulation.event_queue import EventQueue

GROUP_SIZE, LONGEST, SHORTEST, MEDIAN = 4, 512, 8, 64
LEASES, OLDEST, _, ABORT = RULES = ("leases", "oldest under way", "by deadline", "abort")
JUDGEMENTS, BOUNDS = (0, 1, 5), (2, 4, 8)


def length_of(seed: Sequence[int], row: int) -> int:
    """Returns the length of a completion, in tokens."""
    drawn = np.random.default_rng([*seed, row]).lognormal(np.log(MEDIAN), 1.0)
    return int(np.clip(round(drawn), SHORTEST, LONGEST))


class Row(NamedTuple):
    """A completion.

    Attributes:
      lease_id: lease of its group.
      number: its number in the group.
      tokens: its length.
    """

    lease_id: int
    number: int
    tokens: int


class Simulated:
    """A run in virtual time, whose unit is a decode step.

    Args:
      rule: one of `RULES`.
      judging: time of a judgement, in decode steps.
      steps: trainer steps, after which the run ends.

    Attributes:
      marks: time, and number of tokens trained on so far, after each trainer step.
    """

    def __init__(
        self, rule: str, judging: float, max_staleness: int, seed: int, steps: int, slots: int
    ) -> None:
        self._rule, self._judging, self._seed, self._slots = rule, judging, seed, slots
        self._batch = slots // GROUP_SIZE
        self._schedule = resolve("asynchronous", max_staleness=max_staleness)
        self._queue = EventQueue()
        self._state = transition.MasterState(
            MasterSettings(
                self._schedule,
                steps,
                groups_per_step=self._batch,
                explorers=1,
                groups_per_lease=self._batch + (rule != LEASES),
                lease_secs=float("inf"),
                carries_over=rule != LEASES,
            )
        )
        self._waiting: list[Row] = []
        self._running: set[Row] = set()
        self._left: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._buffer: list[int] = []
        self.marks: list[tuple[float, int]] = []

    def run(self) -> None:
        """Runs to the last trainer step."""
        self._tell(Started(Position(0, 0, (), 0)))
        self._tell(VersionPublished(0))
        self._move_on()
        while not self._state.finished:
            assert self._queue.step(), "the run came to a halt"

    def _tell(self, event: Event) -> tuple[object, ...]:
        self._state, commands = transition.transition(self._state, event)
        return commands

    def _move_on(self) -> None:
        """Trains as often as there is a batch, then fills free slots."""
        while not self._state.finished and (batch := self._next_batch()):
            step = self._state.trained_steps + 1
            live = self._state.live
            assert all(self._schedule.accepts(step, live[one].version) for one in batch)
            self._tell(BatchTrained(step, batch))
            self._tell(VersionPublished(step))
            self._buffer = [one for one in self._buffer if one not in batch]
            trained = sum(self._lengths[one] for one in batch)
            before = self.marks[-1][1] if self.marks else 0
            self.marks.append((self._queue.now_secs, before + trained))
        self._begin()

    def _next_batch(self) -> tuple[int, ...]:
        """Returns the lease ids of the next batch; none if it has to be waited for."""
        if len(self._buffer) < self._batch:
            return ()
        if self._rule in (LEASES, OLDEST):
            return tuple(self._buffer[: self._batch])
        step = self._state.trained_steps + 1
        while True:
            answer = self._tell(BatchRequested(step, tuple(self._buffer)))[-1]
            assert isinstance(answer, GrantBatch)
            if answer.lease_ids or self._rule != ABORT:
                return answer.lease_ids
            unfinished = [one for one in self._state.live.values() if one.lease_id in self._left]
            if not unfinished:
                return ()  # Those in judging are waited for.
            oldest = min(unfinished, key=lambda one: one.version).lease_id
            self._tell(GroupsRefused((oldest,), "aborted"))
            del self._left[oldest]
            self._waiting = [row for row in self._waiting if row.lease_id != oldest]
            self._running = {row for row in self._running if row.lease_id != oldest}

    def _begin(self) -> None:
        """Takes leases for free slots, and starts completions."""
        while not self._state.finished and not (self._rule == LEASES and self._left):
            occupied = len(self._running) + len(self._waiting)
            room = max(0, (self._slots - occupied) // GROUP_SIZE + 1)
            if self._rule == OLDEST:
                room = min(room, max(0, self._room_of_oldest()))
            now, under_way = self._queue.now_secs, len(self._left)
            answer = self._tell(LeaseRequested(1, now, max(1, under_way), room))[0]
            if not isinstance(answer, GrantLeases) or not answer.leases:
                break
            for lease in answer.leases:
                seed = (self._seed, lease.ordinal)
                lengths = [length_of(seed, row) for row in range(GROUP_SIZE)]
                self._left[lease.lease_id] = GROUP_SIZE
                self._lengths[lease.lease_id] = sum(lengths)
                self._waiting += [Row(lease.lease_id, *one) for one in enumerate(lengths)]
        while self._waiting and len(self._running) < self._slots:
            row = self._waiting.pop(0)
            self._running.add(row)
            self._queue.after(row.tokens, functools.partial(self._finish, row))

    def _room_of_oldest(self) -> int:
        """Returns the number of groups that may begin beside the oldest one under way."""
        state = self._state
        assert state.newest is not None
        under_way = [one.version for one in state.live.values() if not one.buffered]
        last = deadline_of(state.settings, min([state.newest, *under_way]))
        return (last - state.trained_steps) * self._batch - len(state.live)

    def _finish(self, row: Row) -> None:
        if row not in self._running:
            return  # Its group was aborted.
        self._running.remove(row)
        self._left[row.lease_id] -= 1
        if not self._left[row.lease_id]:
            del self._left[row.lease_id]
            self._queue.after(self._judging, functools.partial(self._insert, row.lease_id))
        self._move_on()

    def _insert(self, lease_id: int) -> None:
        self._tell(GroupsBuffered((lease_id,)))
        self._buffer.append(lease_id)
        self._move_on()


def batch_steps(seed: int) -> float:
    """Returns the mean number of decode steps in which full slots generate a batch."""
    rows = range(GROUP_SIZE)
    return statistics.mean(length_of((seed, group), row) for group in range(200) for row in rows)


def measure(
    rule: str, judging: float, max_staleness: int, seed: int, steps: int, slots: int
) -> float:
    """Returns the time of a run, as a multiple of the time that full slots take.

    Args:
      judging: time of a judgement, in times in which full slots generate a batch.
      steps: trainer steps; those after the first tenth are measured.
    """
    one = Simulated(rule, judging * batch_steps(seed), max_staleness, seed, steps, slots)
    one.run()
    (began, before), (ended, after) = one.marks[steps // 10], one.marks[-1]
    return (ended - began) * slots / (after - before)


def table(seeds: Sequence[int], steps: int, slots: int) -> Iterator[str]:
    """Yields the lines of a table: the median of the seeds, and the least and the greatest."""
    yield "| judgement, batches | `max_staleness` | " + " | ".join(RULES) + " |"
    yield "|---|---|" + "---|" * len(RULES)
    for judging, bound in itertools.product(JUDGEMENTS, BOUNDS):
        cells = []
        for rule in RULES:
            found = [measure(rule, judging, bound, seed, steps, slots) for seed in seeds]
            cells.append(f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        yield f"| {judging} | {bound} | " + " | ".join(cells) + " |"
