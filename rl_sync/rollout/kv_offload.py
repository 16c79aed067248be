"""KV offload: caches of held sequences that lost their slots are kept in host memory.

The copies are plain NumPy arrays, which work on every platform, and a process keeps each part once,
however many devices share it. Pinned host memory would copy faster, but needs one copy for each
device that holds the same part. Slots are copied one by one, so that devices need memory for at
most one copy.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Shaped

from rl_sync.models.cache import KVCache
from rl_sync.rollout.batch import Batch

_Region = tuple[tuple[int | None, int | None], ...]


class _HostArray(NamedTuple):
    """A copy in host memory of the parts of an array that this process's devices held.

    Attributes:
      shape, sharding: shape and sharding of the array on the devices.
      blocks: its parts by their regions.
    """

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    blocks: dict[_Region, Shaped[np.ndarray, "*block"]]


@dataclasses.dataclass(eq=False)
class OffloadedCache:
    """The cache of a sequence, outside of the slots.

    Attributes:
      size_bytes: size of the whole cache, across all processes.
      parts: keys and values; None once they are dropped or restored.
    """

    size_bytes: int
    parts: tuple[_HostArray, _HostArray] | None

    @property
    def is_there(self) -> bool:
        """True until it is dropped or restored."""
        return self.parts is not None


class KvOffload:
    """Caches in host memory, up to a limit; the least recently used are dropped for new ones.

    Args:
      batch: owner of the slots.
      most_bytes: the limit, for all processes of a program together; 0 disables offloading.

    Attributes:
      held_bytes: total size of the copies.
      set_aside, restored: numbers of offloaded and of restored caches so far.
      dropped: number of caches that were dropped for new ones, or because of new weights.
    """

    def __init__(self, batch: Batch, most_bytes: int) -> None:
        self._batch, self._most_bytes = batch, most_bytes
        # Ordered by last use. A dict keeps the order and finds each copy at once.
        self._copies: dict[OffloadedCache, None] = {}
        self.held_bytes = self.set_aside = self.restored = self.dropped = 0

    def put(self, slot: int, tokens: int) -> OffloadedCache | None:
        """Copies the cache of a sequence out of its slot.

        Args:
          tokens: number of tokens of the sequence.

        Returns:
          The copy; None if it would be larger than the whole limit.
        """
        if not self._most_bytes:
            return None
        cache = self._batch.copy_cache(slot, tokens)
        size_bytes = cache.keys.nbytes + cache.values.nbytes
        if size_bytes > self._most_bytes:
            return None
        while self.held_bytes + size_bytes > self._most_bytes:
            self._drop(next(iter(self._copies)))
        copy = OffloadedCache(size_bytes, (_to_host(cache.keys), _to_host(cache.values)))
        self._copies[copy] = None
        self.held_bytes += size_bytes
        self.set_aside += 1
        return copy

    def use_soon(self, copy: OffloadedCache | None) -> None:
        """Marks a copy as recently used, so that other copies are dropped first."""
        if copy in self._copies:
            del self._copies[copy]
            self._copies[copy] = None

    def restore(self, copy: OffloadedCache) -> KVCache:
        """Puts a copy back on the devices, ready to be inserted; its host memory is freed."""
        assert copy.parts is not None, "only what is there can be restored"
        keys, values = copy.parts
        self.forget(copy)
        self.restored += 1
        return KVCache(_on_devices(keys), _on_devices(values))

    def forget(self, copy: OffloadedCache | None) -> None:
        """Frees a copy that is no longer needed."""
        if copy in self._copies:
            del self._copies[copy]
            self.held_bytes -= copy.size_bytes
            copy.parts = None

    def drop_all(self) -> None:
        """Drops all copies; their sequences will be prefilled again."""
        for copy in list(self._copies):
            self._drop(copy)

    def _drop(self, copy: OffloadedCache) -> None:
        self.forget(copy)
        self.dropped += 1


def _to_host(x: Array) -> _HostArray:
    blocks = {_region(shard.index): shard.data for shard in x.addressable_shards}
    # Copied even where the device's memory is host memory, so that no device buffer stays alive.
    return _HostArray(x.shape, x.sharding, {at: np.array(block) for at, block in blocks.items()})


def _on_devices(x: _HostArray) -> Array:
    return jax.make_array_from_callback(x.shape, x.sharding, lambda at: x.blocks[_region(at)])


def _region(index: tuple[slice, ...] | None) -> _Region:
    assert index is not None, "these shards have places in the array"
    return tuple((part.start, part.stop) for part in index)
