"""The sequences in the slots of a batch: sequences in flight, and finished ones that are held."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Int

from rl_sync.rollout.kv_offload import OffloadedCache
from rl_sync.rollout.request import Handle
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.sequence_images import SequenceImages


@dataclasses.dataclass(eq=False)
class Held:
    """A finished sequence that may be extended.

    Attributes:
      tokens: tokens of its prompt and completion.
      since: number of the chunk after which it was held.
      slot: slot that has its cache; None after an eviction.
      copy: its offloaded cache, if there is one.
      images: its images; None for text alone.
    """

    tokens: Int[np.ndarray, " S"]
    since: int
    slot: int | None
    copy: OffloadedCache | None = None
    images: SequenceImages | None = None


class SlotTable:
    """The sequence in each slot, as the host knows it.

    Args:
      set_aside: offloads the cache of an evicted sequence, given its slot and its number of tokens;
        may return None.
      shards: number of equal shares of the slots; a sequence never moves from one to another.

    Attributes:
      rows: number of slots.
      evictions: number of held sequences that lost their slots so far.
    """

    def __init__(
        self, set_aside: Callable[[int, int], OffloadedCache | None], shards: int = 1
    ) -> None:
        self._set_aside, self._shards = set_aside, shards
        self.rows = 0
        self.evictions = 0
        self._live: dict[int, GrowingSequence] = {}
        self._held: dict[Handle, Held] = {}

    @property
    def live(self) -> dict[int, GrowingSequence]:
        """Sequences in flight by slot, in the order of slots."""
        return dict(sorted(self._live.items()))

    @property
    def mask(self) -> Bool[np.ndarray, " B"]:
        """True for each slot whose sequence is in flight."""
        return np.isin(np.arange(self.rows), list(self._live))

    @property
    def held(self) -> tuple[Handle, ...]:
        """Handles of the held sequences, longest held first."""
        return tuple(self._held)

    @property
    def parked(self) -> dict[int, Held]:
        """Held sequences that still have slots, by slot, longest held first."""
        return {held.slot: held for held in self._held.values() if held.slot is not None}

    @property
    def free(self) -> list[int]:
        """Slots without a sequence."""
        taken = self.taken
        return [slot for slot in range(self.rows) if slot not in taken]

    @property
    def taken(self) -> set[int]:
        """Slots with a sequence."""
        return self._live.keys() | self.parked.keys()

    @property
    def tokens(self) -> dict[int, Int[np.ndarray, " S"]]:
        """Tokens of each sequence that has a slot, by slot."""
        live = {slot: sequence.whole for slot, sequence in self._live.items()}
        return live | {slot: held.tokens for slot, held in self.parked.items()}

    @property
    def images(self) -> dict[int, SequenceImages | None]:
        """Images of each sequence that has a slot, by slot."""
        live = {slot: sequence.request.images for slot, sequence in self._live.items()}
        return live | {slot: held.images for slot, held in self.parked.items()}

    @property
    def least_rows(self) -> int:
        """Minimum number of slots that have room for the sequences in flight."""
        shares = collections.Counter(map(self._shard, self._live))
        return self._shards * max(shares.values(), default=0)

    def parked_after(self, chunk: int) -> int:
        """Returns the number of parked sequences that finished after chunk number `chunk`."""
        return sum(held.since > chunk for held in self.parked.values())

    def start(self, slot: int, sequence: GrowingSequence) -> None:
        """Records that a sequence is in flight in a slot."""
        self._live[slot] = sequence

    def finish(self, slot: int, chunk: int) -> None:
        """Frees the slot of a finished sequence, unless its request wants it to be held.

        Args:
          chunk: number of the chunk that finished it.
        """
        sequence = self._live.pop(slot)
        if sequence.request.held:
            images = sequence.request.images
            self._held[sequence.handle] = Held(sequence.whole, chunk, slot, images=images)

    def find(self, handle: Handle) -> Held:
        """Returns a held sequence.

        Raises:
          ValueError: no sequence is held under this handle.
        """
        if (held := self._held.get(handle)) is None:
            raise ValueError(
                f"The engine holds no completion {handle.index} of ticket {handle.ticket}: either"
                " its request did not have held=True, or it is unfinished, extended or released."
            )
        return held

    def release(self, handle: Handle) -> None:
        """Stops holding a sequence; its slot is free."""
        del self._held[handle]

    def interrupt(self, slot: int) -> GrowingSequence:
        """Frees the slot of a sequence in flight, and returns the sequence."""
        return self._live.pop(slot)

    def evict(self, slot: int) -> None:
        """Evicts the held sequence of a slot."""
        self._evict(self.parked[slot])

    def make_room(self, wanted: int) -> None:
        """Evicts held sequences, longest held first, until `wanted` slots are free."""
        lacking = wanted - len(self.free)
        for held in list(self.parked.values())[: max(0, lacking)]:
            self._evict(held)

    def resize(self, rows: int) -> dict[int, int]:
        """Changes the number of slots, and moves all sequences to the first ones of their share.

        Held sequences without room are evicted, longest held first.

        Returns:
          The former slot of each new slot that is in use.
        """
        share, sources = rows // self._shards, dict[int, int]()
        all_live, all_parked = self.live, self.parked
        for number in range(self._shards):
            live = [slot for slot in all_live if self._shard(slot) == number]
            parked = [slot for slot in all_parked if self._shard(slot) == number]
            surplus = max(0, len(live) + len(parked) - share)
            for slot in parked[:surplus]:
                self._evict(all_parked[slot])
            sources |= dict(enumerate([*live, *parked[surplus:]], start=number * share))
        self._live = {new: all_live[old] for new, old in sources.items() if old in all_live}
        for new, old in sources.items():
            if old in all_parked:
                all_parked[old].slot = new
        self.rows = rows
        return sources

    def _shard(self, slot: int) -> int:
        return slot * self._shards // self.rows

    def _evict(self, held: Held) -> None:
        assert held.slot is not None, "only what is parked is evicted"
        held.copy = self._set_aside(held.slot, len(held.tokens))
        held.slot = None
        self.evictions += 1
