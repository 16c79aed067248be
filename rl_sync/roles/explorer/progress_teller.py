"""Tells the master the tokens of completions in flight, which go on from them elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.cluster.rpc import PeerLostError, RemoteError
from rl_sync.cluster.session import Session
from rl_sync.messages.master_calls import TellProgress, ToldProgress
from rl_sync.ports.clock_port import Future
from rl_sync.roles.explorer.actor import Explorer, UnfinishedGroup
from rl_sync.types import CompletionProgress


class _Told(NamedTuple):
    """Tokens of a completion that the master has: their number, and whether they are all."""

    tokens: int
    is_whole: bool

    @classmethod
    def of(cls, progress: CompletionProgress) -> _Told:
        return cls(len(progress.tokens), progress.finish is not None)


_NOTHING = _Told(0, False)
_log = logging.getLogger(__name__)


class ProgressTeller:
    """Tells new tokens every so many decode steps, by a thread, so that decoding never waits.

    Args:
      session: session of this process.
      explorer: the actor.
      every_steps: decode steps between two calls; 0 for none.
    """

    def __init__(self, session: Session, explorer: Explorer, every_steps: int) -> None:
        self._session, self._explorer, self._every = session, explorer, every_steps
        self._told: dict[int, dict[int, _Told]] = {}
        self._steps = 0
        self._calls = session.clock.pool(1, "progress")
        self._call: Future[list[int]] | None = None

    def tell(self, groups: Sequence[UnfinishedGroup]) -> None:
        """Tells the new tokens of unfinished groups, unless it is too early or a call is under way.

        Args:
          groups: all groups in flight.
        """
        steps = self._explorer.engine.stats.steps
        if steps - self._steps < self._every or not self._session.leads or not self._is_free():
            return
        self._steps = steps
        if parts := self._new(groups):
            self._call = self._calls.submit(self._send, parts)

    def tell_all(self, groups: Sequence[UnfinishedGroup]) -> None:
        """Tells all new tokens, and waits until the master has them.

        Raises:
          PeerLostError: the master does not answer.
        """
        if not self._session.leads:
            return
        if self._call is not None:
            self._call.exception()
        while self._is_free() and (parts := self._new(groups)):
            lacking = self._send(parts)
            if not lacking:
                return
            self._told |= {lease_id: {} for lease_id in lacking}

    def close(self) -> None:
        """Ends the thread."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _is_free(self) -> bool:
        """Says whether no call is under way; notes what the last one has not brought to anybody."""
        if self._call is None:
            return True
        if not self._call.done():
            return False
        lost = self._told if self._call.exception() is not None else self._call.result()
        self._told |= {lease_id: {} for lease_id in lost}
        self._call = None
        return True

    def _send(self, parts: list[ToldProgress]) -> list[int]:
        with self._session.alone():
            try:
                return self._session.call(TellProgress(parts))
            except (PeerLostError, RemoteError) as error:
                _log.warning("The tokens so far could not be told: %s", error)
                raise

    def _new(self, groups: Sequence[UnfinishedGroup]) -> list[ToldProgress]:
        """Returns the tokens that were not told before, and notes them as told."""
        parts, before, self._told = list[ToldProgress](), self._told, {}
        for group, rows in zip(groups, self._explorer.progress(groups), strict=True):
            lease = group.lease
            begun = {row: _Told.of(progress) for row, progress in lease.begun}
            told = before.get(lease.lease_id, begun)  # The master has what a lease came with.
            for row, progress in rows.items():
                known, now = told.get(row, _NOTHING), _Told.of(progress)
                if now != known:
                    part = progress.after(known.tokens)
                    parts.append(ToldProgress(lease.lease_id, row, known.tokens, part))
            self._told[lease.lease_id] = {row: _Told.of(progress) for row, progress in rows.items()}
        return parts
