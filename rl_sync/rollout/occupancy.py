"""The sequences in the slots of a batch."""

from __future__ import annotations

from rl_sync.rollout.sequence import GrowingSequence


class Occupancy:
    """The sequence in each slot, as the host knows it.

    Attributes:
      rows: the number of slots.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._live: dict[int, GrowingSequence] = {}

    @property
    def live(self) -> dict[int, GrowingSequence]:
        """The sequences in flight, by slot, in the order of slots."""
        return dict(sorted(self._live.items()))

    @property
    def free(self) -> list[int]:
        """The slots without a sequence."""
        return [slot for slot in range(self.rows) if slot not in self._live]

    def start(self, slot: int, sequence: GrowingSequence) -> None:
        """Records that a sequence is in flight in a slot."""
        self._live[slot] = sequence

    def finish(self, slot: int) -> None:
        """Frees the slot of a finished sequence."""
        del self._live[slot]

    def resize(self, rows: int) -> list[int]:
        """Changes the number of slots, and moves all sequences to the first ones.

        Returns:
          The former slots of the sequences that are kept, in the order of their new slots.
        """
        kept = list(self.live)
        self._live = dict(enumerate(self.live.values()))
        self.rows = rows
        return kept
