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
- *finished parts*: as abort, but the group is judged as it is: it is trained with the completions
  that are finished, and the others are thrown away. Without any it is aborted.
- *by token*: groups under way go on with the newest weights and count as of their version, and a
  step learns from the tokens alone that are not too stale for it. No group is waited for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.messages.events import (
    BatchRequested,
    BatchTrained,
    Event,
    GrantBatch,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    LeaseRequested,
    Position,
    Started,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.roles.master.deadlines import deadline_of
from rl_sync.roles.master.state import MasterSettings
from rl_sync.schedule import resolve
from rl_sync.simulation.event_queue import EventQueue

GROUP_SIZE, LONGEST, SHORTEST, MEDIAN = 4, 512, 8, 64
LEASES, OLDEST, _, ABORT, FINISHED, BY_TOKEN = RULES = (
    "leases", "oldest under way", "by deadline", "abort", "finished parts", "by token",
)  # fmt: skip
LOSSY = (ABORT, FINISHED, BY_TOKEN)
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


class Mark(NamedTuple):
    """Totals after a trainer step.

    Attributes:
      secs: the time.
      trained, lost: tokens that were learned from, and that were generated for nothing.
      rows, cut_rows: completions that were trained on, and that were thrown away in part or whole.
    """

    secs: float
    trained: int
    lost: int
    rows: int
    cut_rows: int


class Simulated:
    """A run in virtual time, whose unit is a decode step.

    Args:
      rule: one of `RULES`.
      judging: time of a judgement, in decode steps.
      steps: trainer steps, after which the run ends.

    Attributes:
      marks: figures after each trainer step.
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
        self._begun: dict[Row, float] = {}
        self._whole: dict[int, list[Row]] = {}
        self._cut: set[int] = set()
        self._buffer: list[int] = []
        self._thrown = self._cut_rows = 0
        self.marks: list[Mark] = []

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
            if self._rule == BY_TOKEN:
                self._renew(step)
            self._mark(step, [row for one in batch for row in self._whole[one]])
        self._begin()

    def _mark(self, step: int, rows: Sequence[Row]) -> None:
        """Adds a step's completions to the totals."""
        before = self.marks[-1] if self.marks else Mark(0.0, 0, 0, 0, 0)
        whole = sum(row.tokens for row in rows)
        stale, stale_rows = self._stale(step, rows) if self._rule == BY_TOKEN else (0, 0)
        self.marks.append(
            Mark(
                self._queue.now_secs,
                before.trained + whole - stale,
                before.lost + stale + self._thrown,
                before.rows + len(rows),
                before.cut_rows + stale_rows + self._cut_rows,
            )
        )
        self._thrown = self._cut_rows = 0

    def _stale(self, step: int, rows: Sequence[Row]) -> tuple[int, int]:
        """Returns the tokens that are too stale for a step, and the completions that have some."""
        oldest = step - 1 - self._schedule.max_staleness
        if oldest <= 0:
            return 0, 0
        since = self.marks[oldest - 1].secs
        stale = [min(row.tokens, max(0, int(since - self._begun[row]))) for row in rows]
        return sum(stale), sum(map(bool, stale))

    def _renew(self, version: int) -> None:
        """Lets groups under way count as of the newest version, with which they go on."""
        live = {
            lease_id: lease._replace(version=version) if lease_id in self._left else lease
            for lease_id, lease in self._state.live.items()
        }
        self._state = dataclasses.replace(self._state, live=live)

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
            if answer.lease_ids or self._rule not in (ABORT, FINISHED):
                return answer.lease_ids
            unfinished = [one for one in self._state.live.values() if one.lease_id in self._left]
            if not unfinished or self._cut:
                return ()  # Those in judging are waited for.
            self._give_up(min(unfinished, key=lambda one: one.version).lease_id)

    def _give_up(self, lease_id: int) -> None:
        """Ends a group that is due: with the completions that are finished, or altogether."""

        def is_its(row: Row) -> bool:
            return row.lease_id == lease_id

        now, cut = self._queue.now_secs, [*filter(is_its, (*self._running, *self._waiting))]
        self._thrown += sum(int(now - self._begun.get(row, now)) for row in cut)
        self._cut_rows += len(cut)
        del self._left[lease_id]
        self._waiting = [row for row in self._waiting if not is_its(row)]
        self._running = {row for row in self._running if not is_its(row)}
        whole = self._whole[lease_id]
        if self._rule == FINISHED and whole:
            self._cut.add(lease_id)
            self._queue.after(self._judging, functools.partial(self._insert, lease_id))
            return
        self._thrown += sum(row.tokens for row in whole)
        self._cut_rows += len(whole)
        self._tell(GroupsRefused((lease_id,), "aborted"))

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
                self._whole[lease.lease_id] = []
                self._waiting += [Row(lease.lease_id, *one) for one in enumerate(lengths)]
        while self._waiting and len(self._running) < self._slots:
            row = self._waiting.pop(0)
            self._running.add(row)
            self._begun[row] = self._queue.now_secs
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
        self._whole[row.lease_id].append(row)
        self._left[row.lease_id] -= 1
        if not self._left[row.lease_id]:
            del self._left[row.lease_id]
            self._queue.after(self._judging, functools.partial(self._insert, row.lease_id))
        self._move_on()

    def _insert(self, lease_id: int) -> None:
        self._cut.discard(lease_id)
        self._tell(GroupsBuffered((lease_id,)))
        self._buffer.append(lease_id)
        self._move_on()


def batch_steps(seed: int) -> float:
    """Returns the mean number of decode steps in which full slots generate a batch."""
    rows = range(GROUP_SIZE)
    return statistics.mean(length_of((seed, group), row) for group in range(200) for row in rows)


class Figures(NamedTuple):
    """Figures of a run.

    Attributes:
      time: its time, as a multiple of the time that full slots take for the tokens that were
        learned from.
      lost: share of the generated tokens that nothing was learned from.
      cut: share of the completions that were not learned from as a whole.
    """

    time: float
    lost: float
    cut: float


def measure(
    rule: str, judging: float, max_staleness: int, seed: int, steps: int, slots: int
) -> Figures:
    """Returns the figures of a run.

    Args:
      judging: time of a judgement, in times in which full slots generate a batch.
      steps: trainer steps; those after the first tenth are measured.
    """
    one = Simulated(rule, judging * batch_steps(seed), max_staleness, seed, steps, slots)
    one.run()
    ended, began = one.marks[-1], one.marks[steps // 10]
    secs, trained, lost, rows, cut = (a - b for a, b in zip(ended, began, strict=True))
    generated, all_rows = trained + lost, rows + (cut if rule in (ABORT, FINISHED) else 0)
    return Figures(secs * slots / trained, lost / generated, cut / all_rows)


def table(seeds: Sequence[int], steps: int, slots: int) -> Iterator[str]:
    """Yields the lines of two tables: medians of the seeds, and the least and the greatest."""
    names = ["judgement, batches", "`max_staleness`", *RULES]
    yield from _lines_of_head(names)
    found: dict[tuple[str, int, int], list[Figures]] = {}
    for judging, bound in itertools.product(JUDGEMENTS, BOUNDS):
        for rule in RULES:
            made = [measure(rule, judging, bound, seed, steps, slots) for seed in seeds]
            found[rule, judging, bound] = made
        cells = [_spread(found[rule, judging, bound], lambda one: one.time) for rule in RULES]
        yield f"| {judging} | {bound} | " + " | ".join(cells) + " |"
    yield ""
    yield from _lines_of_head(
        ["judgement, batches", "`max_staleness`"]
        + [f"{rule}: {what}" for rule in LOSSY for what in ("tokens lost", "completions cut")]
    )
    for judging, bound in itertools.product(JUDGEMENTS, BOUNDS):
        cells = [
            _spread(found[rule, judging, bound], figure, ".0%")
            for rule in LOSSY
            for figure in (lambda one: one.lost, lambda one: one.cut)
        ]
        yield f"| {judging} | {bound} | " + " | ".join(cells) + " |"


def _lines_of_head(names: Sequence[str]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)


def _spread(
    figures: Sequence[Figures], value: Callable[[Figures], float], digits: str = ".2f"
) -> str:
    values = [*map(value, figures)]
    middle, least, greatest = statistics.median(values), min(values), max(values)
    return f"{middle:{digits}} ({least:{digits}} to {greatest:{digits}})"
