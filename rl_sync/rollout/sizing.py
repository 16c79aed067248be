"""The number of slots of a batch, which follows the number of sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rl_sync.rollout.buckets import Sizes
from rl_sync.rollout.queue import Queue
from rl_sync.rollout.slot_table import SlotTable

_REFILLED_SHARE = 8
_PATIENCE_CHUNKS = 8


@dataclasses.dataclass(frozen=True)
class Sizing:
    """Chooses the number of slots, and when a chunk ends so that the number can change.

    Attributes:
      sizes: numbers of slots for which programs exist.
      chunk_tokens: maximum decode steps of a chunk.
      queue, occupancy: parts of the engine with the sequences.
      fitting: returns the number of waiting completions that memory has room for.
    """

    sizes: Sizes
    chunk_tokens: int
    queue: Queue
    occupancy: SlotTable
    fitting: Callable[[], int]

    def rows(self, chunks: int) -> int:
        """Returns the number of slots for the next chunk.

        The slots have room for the unfinished sequences, and for those that were parked recently.
        So a held sequence keeps its slot between two turns, but does not keep a batch large for
        long.

        Args:
          chunks: number of chunks so far.
        """
        unfinished = self.fitting() + len(self.occupancy.live)
        parked = self.occupancy.parked_after(chunks - _PATIENCE_CHUNKS)
        wanted = max(unfinished + parked, self.occupancy.least_rows)
        rows, now = self.sizes.row_bucket(wanted), self.occupancy.rows
        return rows if rows > now or self._may_shrink() else now

    def enough(self) -> int:
        """Returns the number of live rows at which a chunk ends early.

        A chunk ends early so that other requests can start, or the batch can shrink. While requests
        wait, it does not end for every row that becomes free, since each end costs a round trip.
        """
        live, rows = len(self.occupancy.live), self.occupancy.rows
        if self.queue:
            return live - max(1, live // _REFILLED_SHARE)
        smaller = self.sizes.next_smaller(rows)
        return smaller if live > smaller and self._may_shrink() else 0

    def _may_shrink(self) -> bool:
        """Says whether more than one chunk is left, so that compiling a smaller batch pays."""
        longest = max((sequence.left for sequence in self.occupancy.live.values()), default=0)
        return max(longest, self.queue.most_new_tokens) > self.chunk_tokens
