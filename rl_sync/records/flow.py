"""The ledger's flow: how many groups are where, and the staleness of the tokens trained on."""

from __future__ import annotations

import collections
import os
import re
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.json_lines import JsonLinesReader, JsonObject
from rl_sync.records.resumption import RESUMED_AT
from rl_sync.workdir import Workdir

GENERATING, BUFFERED, TRAINED, DROPPED = "generating", "buffered", "trained", "dropped"
_STEP = re.compile(r"step (\d+)")


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


class Flow:
    """Follows the ledger and the list of consumed groups.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.

    Attributes:
      leased: number of leases so far.
      dropped: numbers of dropped groups by reason.
      failed: numbers of failed episodes by reason.
      moments: the numbers of groups after each event.
      fates: what became of each lease so far.
      staleness: numbers of tokens by staleness, for each trainer step.
      trained_tokens: numbers of trained tokens by lease id, for each trainer step.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._ledger = JsonLinesReader(Workdir(workdir).ledger, root)
        self._consumed = JsonLinesReader(Workdir(workdir).consumed, root)
        self._clear()
        self.staleness: dict[int, collections.Counter[int]] = {}
        self.trained_tokens: dict[int, dict[int, int]] = {}

    def _clear(self) -> None:
        self.leased = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.moments: list[Moment] = []
        self.fates: dict[int, Fate] = {}
        self._open: dict[int, str] = {}
        self._in_state: collections.Counter[str] = collections.Counter()
        self._trained: dict[int, list[int]] = {}

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
        for lease in leases:
            self._move(lease["lease_id"], str(event), reason)
        state = self._in_state
        counts = (state[name] for name in (GENERATING, BUFFERED, TRAINED, DROPPED))
        self.moments.append(Moment(record.get("time", 0.0), *counts))

    def _move(self, lease: int, event: str, reason: str) -> None:
        if (fate := Fate.after(event, reason)) is None:
            return
        state = fate.state
        if (before := self._open.pop(lease, None)) is not None:
            self._in_state[before] -= 1
        self._in_state[state] += 1
        self.fates[lease] = fate
        if state == GENERATING:
            self.leased += 1
        elif state == TRAINED:
            step = _STEP.search(reason)
            self._trained.setdefault(int(step[1]) if step else 0, []).append(lease)
        elif state == DROPPED:
            self.dropped[reason] += 1
        if state in (GENERATING, BUFFERED):
            self._open[lease] = state

    def _resume(self, step: int) -> None:
        """Voids the training of later steps; the ledger then drops these groups."""
        for later in [one for one in self._trained if one > step]:
            for lease in self._trained.pop(later):
                self._in_state[TRAINED] -= 1
                self._in_state[BUFFERED] += 1
                self._open[lease] = BUFFERED
                before = any(lease in of for of in self._trained.values())
                self.fates[lease] = Fate(TRAINED if before else BUFFERED)

    def _consume(self, record: JsonObject) -> None:
        if RESUMED_AT in record:
            resumed_at = record[RESUMED_AT]
            self.staleness = {s: of for s, of in self.staleness.items() if s <= resumed_at}
            kept = {s: of for s, of in self.trained_tokens.items() if s <= resumed_at}
            self.trained_tokens = kept
            return
        step, ages, trained = record.get("step", 0), collections.Counter[int](), dict[int, int]()
        for group in record.get("groups", ()):
            for trajectory in group["versions"]:
                for version, tokens in trajectory:
                    if version >= 0:
                        ages[step - 1 - version] += tokens
            counts = (tokens for runs in group["versions"] for _, tokens in runs)
            trained[group["lease_id"]] = sum(counts)
        self.staleness[step], self.trained_tokens[step] = ages, trained
