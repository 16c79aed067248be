"""The number of slots of a batch, which follows the number of sequences."""

from __future__ import annotations

import dataclasses

from rl_sync.rollout.buckets import Sizes
from rl_sync.rollout.queue import Queue
from rl_sync.rollout.slot_table import SlotTable

_REFILLED_SHARE = 8
_PATIENCE_CHUNKS = 8


@dataclasses.dataclass(frozen=True)
class Sizing:
    """Chooses the number of slots, and when a chunk ends so that it can change.

    Attributes:
      sizes: the numbers of slots that there are programs for.
      chunk_tokens: the most steps of a chunk.
      queue, occupancy: the sequences.
    """

    sizes: Sizes
    chunk_tokens: int
    queue: Queue
    occupancy: SlotTable

    def rows(self, chunks: int) -> int:
        """Returns the number of slots for the next chunk.

        It fits the unfinished sequences, and those lately parked. So held sequences keep their
        slots while there may be enough, but none keeps a batch large for long.

        Args:
          chunks: the number of chunks so far.
        """
        unfinished = self.queue.completions + len(self.occupancy.live)
        parked = self.occupancy.parked_after(chunks - _PATIENCE_CHUNKS)
        rows, now = self.sizes.row_bucket(unfinished + parked), self.occupancy.rows
        return rows if rows > now or self._may_shrink() else now

    def enough(self) -> int:
        """Returns the number of live rows at which a chunk ends early.

        It ends early so that other requests can start, or the batch can shrink. While requests
        wait, it does not end for every single row: each end costs a round trip.
        """
        live, rows = len(self.occupancy.live), self.occupancy.rows
        if self.queue:
            return min(live - 1, rows - max(1, rows // _REFILLED_SHARE))
        smaller = self.sizes.next_smaller(rows)
        return smaller if live > smaller and self._may_shrink() else 0

    def _may_shrink(self) -> bool:
        """Says whether more than a chunk is to come, so that compiling a smaller batch pays."""
        longest = max((sequence.left for sequence in self.occupancy.live.values()), default=0)
        return max(longest, self.queue.most_new_tokens) > self.chunk_tokens
