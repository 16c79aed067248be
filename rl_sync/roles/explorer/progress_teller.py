"""Tells the master the tokens of completions and episodes in flight, which go on elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from rl_sync.cluster.rpc import PeerLostError, RemoteError
from rl_sync.cluster.session import Session
from rl_sync.messages.master_calls import TellProgress, ToldProgress
from rl_sync.ports.clock_port import Future
from rl_sync.roles.explorer.actor import Explorer, UnfinishedGroup
from rl_sync.sampling_masks import no_entries
from rl_sync.types import CompletionProgress, Finish

_NOTHING = CompletionProgress(*(np.zeros(0, np.int32),) * 3, no_entries())
_log = logging.getLogger(__name__)


class ProgressTeller:
    """Tells new tokens every so many tokens, by a thread, so that decoding never waits.

    Args:
      session: session of this process.
      explorer: the actor.
      every_tokens: tokens of a sequence between two calls; 0 for none.
    """

    def __init__(self, session: Session, explorer: Explorer, every_tokens: int) -> None:
        self._session, self._explorer, self._every = session, explorer, every_tokens
        self._told: dict[int, dict[int, CompletionProgress]] = {}
        self._stretch = 0
        self._calls = session.clock.pool(1, "progress")
        self._call: Future[list[int]] | None = None

    def tell(self, groups: Sequence[UnfinishedGroup]) -> None:
        """Tells the new tokens of unfinished groups, unless it is too early or a call is under way.

        Args:
          groups: all groups in flight.
        """
        stretch = self._explorer.engine.stats.stretch_tokens
        if stretch - self._stretch < self._every or not self._session.leads or not self._is_free():
            return
        self._stretch = stretch
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
            # The master has what a lease came with.
            told = before.get(lease.lease_id, dict(lease.begun))
            for row, now in rows.items():
                known = told.get(row, _NOTHING)
                start = len(known.tokens)
                if not now.follows(known):  # An episode began again, or went on otherwise.
                    parts.append(ToldProgress(lease.lease_id, row, 0, now))
                elif (start, *_ends(known)) != (len(now.tokens), *_ends(now)):
                    parts.append(ToldProgress(lease.lease_id, row, start, now.after(start)))
            # Only tokens and ends are compared; other records may take much memory.
            self._told[lease.lease_id] = {
                row: now._replace(masks=no_entries(), sampler=None) for row, now in rows.items()
            }
        return parts


def _ends(progress: CompletionProgress) -> list[Finish | None]:
    """Returns the ends of a completion, or of the replies of an episode."""
    return [progress.finish, *(reply.finish for reply in progress.replies)]
