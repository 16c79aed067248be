"""Decides by the clock whether drafts pay.

Tokens are the same either way, so the clock decides nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Speculation = Literal["off", "always", "auto"]
"""Whether decode steps draft tokens: never, always, or as long as that is faster."""

_TRIED_CHUNKS = 4
_KEPT_CHUNKS = 64
_LEFT_OUT_CHUNKS = 512


@dataclasses.dataclass
class _TimedChunks:
    """Chunks of one kind: their number, seconds and tokens."""

    chunks: int = 0
    secs: float = 0.0
    tokens: int = 0

    @property
    def secs_a_token(self) -> float:
        return self.secs / max(1, self.tokens)


class DraftPace:
    """Compares a few chunks with drafts and as many without, and keeps to the faster kind.

    The kinds take turns, so that both have about the same sequences. The comparison is repeated
    later: soon if drafts paid, and seldom if they did not.

    Attributes:
      drafts: whether the next chunk has drafts.
    """

    def __init__(self) -> None:
        self.drafts = True
        self._begin()

    def _begin(self) -> None:
        self._tried, self._left = {True: _TimedChunks(), False: _TimedChunks()}, 0

    def record(self, tokens: int, secs: float) -> None:
        """Records the tokens and seconds of a chunk, of the kind that `drafts` said."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._begin()
                self.drafts = True
            return
        work = self._tried[self.drafts]
        work.chunks, work.secs, work.tokens = (
            work.chunks + 1,
            work.secs + secs,
            work.tokens + tokens,
        )
        if min(one.chunks for one in self._tried.values()) == _TRIED_CHUNKS:
            self.drafts = self._tried[True].secs_a_token < self._tried[False].secs_a_token
            self._left = _KEPT_CHUNKS if self.drafts else _LEFT_OUT_CHUNKS
        else:
            self.drafts = not self.drafts
