"""Reads the tokens that roles generated, and where they went when they left an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.json_lines import JsonLinesFolder, JsonObject, warn_of_broken
from rl_sync.records.tokens.lease_columns import LeaseColumn
from rl_sync.workdir import Workdir

COMPILATION, EVALUATION = "compilation", "evaluation"
SURPLUS, OPPONENTS = "after a stop string", "opponents"
RESTARTED, DIFFERING = "environment failed", "turn differed"
"""Places of tokens that are in no group: the last two of attempts at episodes that began again, and
of episodes that went on elsewhere, where no turn asked for these tokens again."""


class TokenLife(NamedTuple):
    """Counts of tokens of a role's process, from its start to its last record.

    Without loss, the sum of `to`, `grouped` and `in_flight` is that of `generated` and `given`.

    Attributes:
      role: name of the role.
      began_secs, last_secs: times of its first and its last record, in Unix seconds.
      generated: number of sampled tokens, by the engine's counter.
      prompt_computed: number of prompt tokens that were computed.
      prompt_reused: number of prompt tokens whose cache was reused.
      to: number of tokens by their place, of those in no group.
      grouped: number of tokens in whole groups.
      in_flight: number of tokens of completions and groups that are not whole.
      given: number of tokens of completions that went on from those of another process.
      devices: names of its devices; processes that share one have the same name for it.
      is_over: whether the process has ended in order.
    """

    role: str
    began_secs: float
    last_secs: float
    generated: int = 0
    prompt_computed: int = 0
    prompt_reused: int = 0
    to: Mapping[str, int] = {}
    grouped: int = 0
    in_flight: int = 0
    given: int = 0
    devices: tuple[str, ...] = ()
    is_over: bool = False


class GroupTokens(NamedTuple):
    """Number of sampled tokens of a group, and of its greedy completion."""

    sampled: int
    greedy: int


class TokenLives:
    """Follows the records of tokens.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.

    Attributes:
      lives: the processes, each role's in order.
      sampled, greedy: numbers of tokens of each whole group and of its greedy completion, by lease
        id; -1 for a group that is not whole.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None) -> None:
        self._folder = JsonLinesFolder(Workdir(workdir).tokens, root)
        self._lives: dict[tuple[str, str], TokenLife] = {}
        self.sampled, self.greedy = LeaseColumn(-1), LeaseColumn(-1)

    @property
    def lives(self) -> list[TokenLife]:
        """The processes so far, each role's in order."""
        return [*self._lives.values()]

    def refresh(self) -> int:
        """Reads what is new; returns the number of bytes."""
        size = 0
        for path, news in self._folder.read():
            warn_of_broken(path, news.broken)
            for line in news.lines:
                try:
                    self._add(path.stem, line.record)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    warn_of_broken(path, [(line.number, f"no counts of tokens: {error!r}")])
            size += news.size
        return size

    def _add(self, role: str, record: JsonObject) -> None:
        key, to, secs = (role, record["life"]), record["to"], record["time"]
        before = self._lives.get(key, TokenLife(role, secs, secs))
        given = record.get("given", 0)
        elsewhere = sum(to.values()) + record["grouped"] - given
        self._lives[key] = before._replace(
            last_secs=secs,
            generated=record["generated"],
            prompt_computed=record["prompt_computed"],
            prompt_reused=record["prompt_reused"],
            to=to,
            grouped=record["grouped"],
            # In the middle of its work a role knows only its engine's counter.
            in_flight=record.get("in_flight", record["generated"] - elsewhere),
            given=given,
            devices=tuple(record.get("devices", before.devices)),
            is_over=record.get("is_over", False),
        )
        groups = record.get("groups", ())
        if not groups:
            return
        known = {*self.sampled.room(self.greedy.room([lease for lease, _, _ in groups]))}
        for lease, sampled, greedy in groups:
            if lease in known:
                self.sampled.values[lease], self.greedy.values[lease] = sampled, greedy
