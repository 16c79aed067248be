"""Streaming with a small bound on staleness, simulated: which groups wait for whom.

    python benchmarks/streaming_simulation.py [--seeds=0:8] [--steps=60] [--slots=16]

The master's `transition` decides; everything else is virtual. One explorer has 16 slots, groups
have 4 completions of log-normal lengths (8 to 512 tokens, median 64, sigma 1), and a batch has as
many groups as fill the slots. Each occupied slot gives a token in each decode step. A judgement
takes no time, or as long as one or five leased rollouts on average; the trainer takes none, and
publishes at once.

Each figure is the time of the steps after the first tenth, as a multiple of the time in which full
slots would generate the tokens that were trained on: median, least and greatest of the seeds.

- *oldest under way*: while a group is unfinished, others begin only as long as they can be trained
  before it becomes too stale; the trainer takes groups first in, first out.
- *by deadline*: what `transition` does.
- *abort*: as by deadline, but the trainer never waits for a group that is due and unfinished. Its
  tokens are thrown away, and its prompt is leased again.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np

from rl_sync.roles.master import deadlines, transition
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
OLDEST, DEADLINE, ABORT = RULES = ("oldest under way", "by deadline", "abort")
CASES = ((0, 2), (0, 4), (1, 2), (1, 4), (1, 8), (5, 4), (5, 8))
"""Time of a judgement, in mean times of a leased rollout, and the bound on staleness."""


def length_of(seed: Sequence[int], row: int) -> int:
    """Returns the length of a completion, in tokens."""
    drawn = np.random.default_rng([*seed, row]).lognormal(np.log(MEDIAN), 1.0)
    return int(np.clip(round(drawn), SHORTEST, LONGEST))


@dataclasses.dataclass
class Row:
    """A completion.

    Attributes:
      lease_id: lease of its group.
      tokens: its length.
      token: changes when the completion is thrown away.
    """

    lease_id: int
    tokens: int


class Simulated:
    """A run in virtual time, whose unit is a decode step.

    Attributes:
      marks: time, and number of tokens trained on so far, after each trainer step.
      stalest: greatest staleness of a group that was trained on.
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
                groups_per_lease=self._batch + 1,
                lease_secs=float("inf"),
                carries_over=True,
            )
        )
        self._waiting: list[Row] = []
        self._running = 0
        self._left: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._buffer: list[int] = []
        self.marks: list[tuple[float, int]] = []
        self.stalest = 0
        self.thrown = 0

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
            versions = [self._state.live[one].version for one in batch]
            self.stalest = max(self.stalest, *(step - 1 - version for version in versions))
            assert self.stalest <= self._schedule.max_staleness
            self._tell(BatchTrained(step, batch))
            self._tell(VersionPublished(step))
            self._buffer = [one for one in self._buffer if one not in batch]
            trained = sum(self._lengths[one] for one in batch)
            before = self.marks[-1][1] if self.marks else 0
            self.marks.append((self._queue.now_secs, before + trained))
        self._begin()

    def _next_batch(self) -> tuple[int, ...]:
        if len(self._buffer) < self._batch:
            return ()
        if self._rule == OLDEST:
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

    def _begin(self) -> None:
        while not self._state.finished:
            occupied = self._running + len(self._waiting)
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
                self._waiting += [Row(lease.lease_id, tokens) for tokens in lengths]
        while self._waiting and self._running < self._slots:
            row = self._waiting.pop(0)
            self._running += 1
            self._queue.after(row.tokens, lambda row=row: self._finish(row))

    def _room_of_oldest(self) -> int:
        state = self._state
        assert state.newest is not None
        under_way = [one.version for one in state.live.values() if not one.buffered]
        last = deadlines.deadline(state.settings, min([state.newest, *under_way]))
        return (last - state.trained_steps) * self._batch - len(state.live)

    def _finish(self, row: Row) -> None:
        self._running -= 1
        if row.lease_id in self._left:
            self._left[row.lease_id] -= 1
            if not self._left[row.lease_id]:
                del self._left[row.lease_id]
                self._queue.after(self._judging, lambda: self._insert(row.lease_id))
        self._move_on()

    def _insert(self, lease_id: int) -> None:
        self._tell(GroupsBuffered((lease_id,)))
        self._buffer.append(lease_id)
        self._move_on()


def rollout_steps(seed: int, slots: int) -> float:
    """Returns the mean number of decode steps of a leased rollout, which fills the slots once."""
    batch = slots // GROUP_SIZE
    return statistics.mean(
        max(
            length_of((seed, lease * batch + group), row)
            for group in range(batch)
            for row in range(GROUP_SIZE)
        )
        for lease in range(50)
    )


def measure(
    rule: str, judging: float, max_staleness: int, seed: int, steps: int, slots: int
) -> float:
    """Returns the time of a run, as a multiple of the time that full slots take."""
    one = Simulated(rule, judging * rollout_steps(seed, slots), max_staleness, seed, steps, slots)
    one.run()
    (began, before), (ended, after) = one.marks[steps // 10], one.marks[-1]
    return (ended - began) * slots / (after - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:8")
    parser.add_argument("--steps", type=int, default=60, help="trainer steps of each run")
    parser.add_argument("--slots", type=int, default=16)
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition(":")
    print("| judgement, rollouts | S | " + " | ".join(RULES) + " |\n|" + "---|" * 5)
    for judging, bound in CASES:
        cells = []
        for rule in RULES:
            found = [
                measure(rule, judging, bound, seed, arguments.steps, arguments.slots)
                for seed in range(int(first), int(last))
            ]
            cells.append(
                f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
            )
        print(f"| {judging} | {bound} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
