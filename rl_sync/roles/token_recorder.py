"""Records the tokens that a role generates, and where they go when they leave its engine."""

from __future__ import annotations

import collections
import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rl_sync.clock import now_secs
from rl_sync.models.sharding import Layout
from rl_sync.records.json_lines import JsonLinesWriter, JsonObject
from rl_sync.records.tokens import token_lives
from rl_sync.rollout.stats import Stats
from rl_sync.types import Group

_EVERY_SECS = 1.0


class TokenRecorder:
    """Writes counts of tokens to `workdir/tokens/<role>.jsonl`; see `token_lives.TokenLife`.

    Args:
      path: file of the role; None in a process that does not record.
      layout: layout of the role's devices.
    """

    def __init__(self, path: Path | None, layout: Layout) -> None:
        self._lines = None if path is None else JsonLinesWriter(path, vital=False)
        self._life = secrets.token_hex(6)
        self._before = Stats()
        self._to: collections.Counter[str] = collections.Counter()
        self._grouped = self._given = 0
        self._due_secs = 0.0
        self._write(Stats(), {"devices": _devices(layout), "in_flight": 0})

    def compiled(self, stats: Stats) -> None:
        """Counts the tokens of an engine that has only compiled its programs."""
        self._to[token_lives.COMPILATION] = stats.decode_tokens - stats.surplus_tokens
        self._write(stats, {"in_flight": 0})

    def begin(self, given: int) -> None:
        """Notes tokens that completions or episodes come with, which another process generated."""
        self._given += given

    def look(self, stats: Stats) -> None:
        """Records the engine's counts so far in the middle of its work, once a second at most."""
        if time.monotonic() >= self._due_secs:
            self._write(stats, {})

    def count(
        self, stats: Stats, in_flight: int, groups: Sequence[Group] = (), group_size: int = 0
    ) -> None:
        """Records whole groups; without any, no more than the engine's counts once a second.

        Args:
          stats: counts of the engine so far.
          in_flight: number of tokens of completions and groups that are not whole.
          groups: groups that are whole since the last call, as they leave the engine.
          group_size: number of sampled completions of a group; a greedy one may follow.
        """
        if not groups and time.monotonic() < self._due_secs:
            return
        rows = [(group.lease_id, group.completion_mask.sum(axis=1)) for group in groups]
        tokens = [[one, int(of[:group_size].sum()), int(of[group_size:].sum())] for one, of in rows]
        self._grouped += sum(sampled + greedy for _, sampled, greedy in tokens)
        self._write(stats, {"in_flight": in_flight, "groups": tokens})

    def evaluated(self, stats: Stats, in_flight: int, tokens: int) -> None:
        """Records completions of an evaluation.

        Args:
          stats, in_flight: see `count`.
          tokens: number of their tokens.
        """
        self._to[token_lives.EVALUATION] += tokens
        self._write(stats, {"in_flight": in_flight})

    def engine_ended(self, stats: Stats) -> None:
        """Keeps the counts of an engine; later calls are about another one."""
        self._before += stats

    def end(self, stats: Stats) -> None:
        """Records that the role has ended in order, and closes the file."""
        self._write(stats, {"is_over": True})
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write(self, stats: Stats, fields: JsonObject) -> None:
        if self._lines is None:
            return
        self._due_secs = time.monotonic() + _EVERY_SECS
        total = self._before + stats
        to = self._to + collections.Counter(
            {
                token_lives.SURPLUS: total.surplus_tokens,
                token_lives.OPPONENTS: total.opponent_tokens,
                token_lives.RESTARTED: total.restarted_tokens,
                token_lives.DIFFERING: total.differing_tokens,
            }
        )
        self._lines.write(
            {
                "time": now_secs(),
                "life": self._life,
                "generated": total.decode_tokens,
                "prompt_computed": total.prefill_tokens,
                "prompt_reused": total.reused_tokens,
                "to": to,
                "grouped": self._grouped,
                "given": self._given,
                **fields,
            }
        )


def _devices(layout: Layout) -> list[str]:
    """Names the devices of a role; roles that share one give it the same name."""
    place = f"{socket.gethostname()}:{os.getpid()}"
    return [f"{place}:{device.id}" for device in np.ravel(layout.mesh.devices)]
