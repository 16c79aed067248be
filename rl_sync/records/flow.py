"""The ledger's flow: how many groups are where, and the staleness of the tokens trained on."""

from __future__ import annotations

import collections
import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.json_lines import JsonLinesReader, JsonObject
from rl_sync.records.resumption import RESUMED_AT
from rl_sync.records.tokens.lease_columns import LeaseColumn
from rl_sync.workdir import Workdir

GENERATING, BUFFERED, TRAINED, DROPPED = "generating", "buffered", "trained", "dropped"
_STEP = re.compile(r"step (\d+)")
_OPEN = ("", GENERATING, BUFFERED)
"""States in which a lease has not ended, by their number; 0 for a lease that has."""

_MOST_MOMENTS = 8192


class Moment(NamedTuple):
    """Numbers of groups at one time, in Unix seconds; `trained` and `dropped` are cumulative."""

    secs: float
    generating: int
    buffered: int
    trained: int
    dropped: int


class Fate(NamedTuple):
    """State of a lease, and the reason if it is dropped."""

    state: str
    reason: str = ""

    @classmethod
    def after(cls, event: str, reason: str) -> Fate | None:
        """Returns the fate of the leases of an event in the ledger; None if it changes none."""
        state = GENERATING if event == "leased" else event
        if state not in (GENERATING, BUFFERED, TRAINED, DROPPED):
            return None
        return cls(state, reason if state == DROPPED else "")


class TrainedTokens(NamedTuple):
    """Lease ids of the groups that a step has trained on, and their numbers of tokens."""

    leases: array[int]
    tokens: array[int]


class Flow:
    """Follows the ledger and the list of consumed groups.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.

    Attributes:
      leased: number of leases so far.
      dropped: numbers of dropped groups by reason.
      failed: numbers of failed episodes by reason.
      moments: the numbers of groups after each event; in a long run after some of them.
      fates: fates that leases have.
      fate: what became of each lease so far, as a place in `fates`; -1 if nothing is known.
      staleness: numbers of tokens by staleness, for each trainer step.
      trained_tokens: what each trainer step has trained on.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._ledger = JsonLinesReader(Workdir(workdir).ledger, root)
        self._consumed = JsonLinesReader(Workdir(workdir).consumed, root)
        self._clear()
        self.staleness: dict[int, collections.Counter[int]] = {}
        self.trained_tokens: dict[int, TrainedTokens] = {}

    def _clear(self) -> None:
        self.leased = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.moments: list[Moment] = []
        self.fates: list[Fate] = []
        self.fate = LeaseColumn(-1)
        self._open = LeaseColumn(0, "b")
        self._in_state: collections.Counter[str] = collections.Counter()
        self._trained: dict[int, array[int]] = {}

    @property
    def now(self) -> Moment:
        """The numbers of groups after the last event."""
        return self.moments[-1] if self.moments else Moment(0.0, 0, 0, 0, 0)

    def refresh(self) -> int:
        """Reads new records; returns the number of bytes."""
        news = self._ledger.read()
        if news.is_anew:
            self._clear()
        for line in news.lines:
            self._add(line.record)
        consumed = self._consumed.read()
        if consumed.is_anew:
            self.staleness, self.trained_tokens = {}, {}
        for line in consumed.lines:
            self._consume(line.record)
        return news.size + consumed.size

    def _add(self, record: JsonObject) -> None:
        event, reason = record.get("event"), str(record.get("reason", ""))
        if RESUMED_AT in record:
            self._resume(record[RESUMED_AT])
        elif event == "episode failed":
            self.failed[str(record.get("episode", {}).get("reason", ""))] += 1
        leases = record.get("leases")
        if not isinstance(leases, list):
            return
        self._move([lease["lease_id"] for lease in leases], str(event), reason)
        state = self._in_state
        counts = (state[name] for name in (GENERATING, BUFFERED, TRAINED, DROPPED))
        self.moments.append(Moment(record.get("time", 0.0), *counts))
        if len(self.moments) > _MOST_MOMENTS:
            del self.moments[1:-1:2]

    def _move(self, leases: Sequence[int], event: str, reason: str) -> None:
        if (fate := Fate.after(event, reason)) is None:
            return
        state = fate.state
        leases = self._open.room(leases)
        self.fate.room(leases)
        for before, count in self._put(leases, fate).items():
            self._in_state[_OPEN[before]] -= count
        self._in_state[state] += len(leases)
        if state == GENERATING:
            self.leased += len(leases)
        elif state == TRAINED:
            step = _STEP.search(reason)
            self._trained.setdefault(int(step[1]) if step else 0, array("q")).extend(leases)
        elif state == DROPPED:
            self.dropped[reason] += len(leases)

    def _put(self, leases: Sequence[int], fate: Fate) -> dict[int, int]:
        """Notes the fate of leases; returns how many were in each of the states of `_OPEN`."""
        fates, states, code = self.fate.values, self._open.values, self._code(fate)
        state = _OPEN.index(fate.state) if fate.state in _OPEN else 0
        before = collections.Counter([states[lease] for lease in leases])
        for lease in leases:
            states[lease], fates[lease] = state, code
        del before[0]
        return before

    def _code(self, fate: Fate) -> int:
        if fate not in self.fates:
            self.fates.append(fate)
        return self.fates.index(fate)

    def _resume(self, step: int) -> None:
        """Voids the training of later steps; the ledger then drops these groups."""
        later = [self._trained.pop(one) for one in [*self._trained] if one > step]
        leases = {lease for of_step in later for lease in of_step}
        if not leases:
            return
        self._in_state[TRAINED] -= sum(map(len, later))
        self._in_state[BUFFERED] += len(leases)
        self._put([*leases], Fate(BUFFERED))
        before = {lease for of_step in self._trained.values() for lease in of_step}
        trained = self._code(Fate(TRAINED))
        for lease in leases & before:
            self.fate.values[lease] = trained

    def _consume(self, record: JsonObject) -> None:
        if RESUMED_AT in record:
            resumed_at = record[RESUMED_AT]
            self.staleness = {s: of for s, of in self.staleness.items() if s <= resumed_at}
            kept = {s: of for s, of in self.trained_tokens.items() if s <= resumed_at}
            self.trained_tokens = kept
            return
        step, of_version = record.get("step", 0), collections.Counter[int]()
        trained = TrainedTokens(array("q"), array("q"))
        for group in record.get("groups", ()):
            runs = [run for trajectory in group["versions"] for run in trajectory]
            for version, tokens in runs:
                of_version[version] += tokens
            trained.leases.append(group["lease_id"])
            trained.tokens.append(sum([tokens for _, tokens in runs]))
        self.staleness[step] = collections.Counter(
            {step - 1 - version: n for version, n in of_version.items() if version >= 0}
        )
        self.trained_tokens[step] = trained
