"""The search: simulates many seeds, and makes the run of a failing one as small as it can."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl_sync.simulation.faults.drawn_run import DrawnFault, DrawnRun, draw
from rl_sync.simulation.faults.world import CORRECT, Parts, simulate

_CHUNK = 25
_MOST_ATTEMPTS = 200


class Alteration(NamedTuple):
    """Differences to the run that a seed stands for; None for what the seed has drawn.

    Attributes:
      kinds: kinds of faults that happen.
      faults: numbers of the drawn faults that happen.
      steps: number of trainer steps.
    """

    kinds: tuple[str, ...] | None = None
    faults: tuple[int, ...] | None = None
    steps: int | None = None

    def __str__(self) -> str:
        options = {"kinds": self.kinds, "faults": self.faults, "steps": self.steps}
        given = {name: value for name, value in options.items() if value is not None}
        texts = {
            name: str(value) if isinstance(value, int) else ",".join(map(str, value))
            for name, value in given.items()
        }
        return "".join(f" '--{name}={text}'" for name, text in texts.items())

    def applied(self, run: DrawnRun) -> DrawnRun:
        """Returns the altered run."""
        kinds = run.kinds if self.kinds is None else frozenset(self.kinds)
        numbers = range(len(run.faults)) if self.faults is None else self.faults
        faults: tuple[DrawnFault, ...] = tuple(run.faults[number] for number in numbers)
        return dataclasses.replace(
            run,
            kinds=kinds,
            faults=tuple(fault for fault in faults if fault.kind in kinds),
            steps=run.steps if self.steps is None else self.steps,
        )


AS_DRAWN = Alteration()


class Finding(NamedTuple):
    """Result of one seed.

    Attributes:
      failed: the rule that was broken; None if all held.
      handled: number of events.
      crashes: number of processes that died.
    """

    seed: int
    failed: str | None
    handled: int
    crashes: int


def examine(seed: int, parts: Parts = CORRECT, alteration: Alteration = AS_DRAWN) -> Finding:
    """Simulates the run of a seed."""
    outcome = simulate(alteration.applied(draw(seed)), parts)
    return Finding(seed, outcome.failed, outcome.handled, outcome.crashes)


def search(seeds: Sequence[int], processes: int = 1, parts: Parts = CORRECT) -> Iterator[Finding]:
    """Simulates many seeds, in this process or in several; yields the results as they come."""
    one = functools.partial(examine, parts=parts)
    if processes == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(one, seeds, _CHUNK)


def shrink(seed: int, parts: Parts = CORRECT) -> Alteration:
    """Leaves out kinds of faults, single faults and steps, as long as the run still fails."""
    run = draw(seed)
    smallest = Alteration(tuple(sorted(run.kinds)), tuple(range(len(run.faults))), run.steps)
    attempts = 0
    is_smaller = True
    while is_smaller and attempts < _MOST_ATTEMPTS:
        is_smaller = False
        for candidate in _smaller(smallest):
            attempts += 1
            if examine(seed, parts, candidate).failed:
                smallest, is_smaller = candidate, True
                break
    return smallest


def _smaller(one: Alteration) -> Iterator[Alteration]:
    kinds, faults, steps = one.kinds or (), one.faults or (), one.steps or 1
    for kind in kinds:
        yield one._replace(kinds=tuple(other for other in kinds if other != kind))
    if len(faults) > 3:
        yield one._replace(faults=faults[: len(faults) // 2])
        yield one._replace(faults=faults[len(faults) // 2 :])
    for number in faults:
        yield one._replace(faults=tuple(other for other in faults if other != number))
    if steps > 1:
        yield one._replace(steps=steps - 1)


class SearchProgress:
    """Counts results, and says from time to time how far the search is.

    Args:
      count: number of seeds.
      every_secs: time between two lines.
    """

    def __init__(self, count: int, every_secs: float = 5.0) -> None:
        self._count, self._every_secs = count, every_secs
        self._began = self._told = time.monotonic()
        self.done = self.handled = self.crashes = 0

    def add(self, found: Finding) -> str | None:
        """Counts a result; returns a line if one is due."""
        self.done += 1
        self.handled += found.handled
        self.crashes += found.crashes
        now = time.monotonic()
        if now - self._told < self._every_secs and self.done < self._count:
            return None
        self._told = now
        rate = self.done / max(1e-9, now - self._began)
        return (
            f"{self.done} of {self._count} seeds, {rate:.0f} seeds/s, {self.handled} events,"
            f" {self.crashes} deaths of processes"
        )
