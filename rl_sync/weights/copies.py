"""Copies on the device, dispatched asynchronously, and copies from the device to the host.

The caller continues while a copy on the device is made. On a CPU, XLA runs a program of less than
1000 arithmetic operations in the calling thread, however many bytes it copies. So these programs
contain some extra operations.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Float, Shaped

from rl_sync.weights.cells import Region

_OPERATIONS = 2000
_PINNED = "pinned_host"
_IN_FLIGHT_BYTES = 1 << 29

T = TypeVar("T")

Cut = tuple[int, Region]
"""Number of an array, and the region of it to copy."""


def copied(tree: T) -> T:
    """Copies a pytree of arrays; donating the originals does not affect the copies."""
    return _copied(tree, np.float32(1))[0]


def on_host(
    arrays: Iterable[Shaped[Array, "*shape"]], *, pinned: bool | None = None
) -> Iterator[Shaped[np.ndarray, "*shape"]]:
    """Fetches arrays to the host, several at a time; yields them in order.

    Args:
      arrays: arrays of one device each. Those of a CPU are yielded in their own memory.
      pinned: whether they pass through pinned host memory, which a device writes without the help
        of the host; by default those of GPUs.
    """
    waiting: collections.deque[tuple[Array, bool]] = collections.deque()
    nbytes = 0
    for array in arrays:
        (device,) = array.devices()
        if by_pinned := _copies_by_pinned_memory(device) if pinned is None else pinned:
            sharding = SingleDeviceSharding(device, memory_kind=_PINNED)
            waiting.append((jax.device_put(array, sharding), by_pinned))
        else:
            array.copy_to_host_async()
            waiting.append((array, by_pinned))
        nbytes += array.nbytes
        while len(waiting) > 1 and nbytes > _IN_FLIGHT_BYTES:
            nbytes -= waiting[0][0].nbytes
            yield _arrived(*waiting.popleft())
    while waiting:
        yield _arrived(*waiting.popleft())


def _arrived(array: Shaped[Array, "*shape"], pinned: bool) -> Shaped[np.ndarray, "*shape"]:
    """Waits for a copy on the host; takes it out of pinned memory, of which there is little."""
    there = np.asarray(array)
    return there.copy() if pinned else there


def _copies_by_pinned_memory(device: jax.Device) -> bool:
    """Says whether a device is a GPU with pinned memory, without which its copies are slow."""
    kinds = {memory.kind for memory in device.addressable_memories()}
    return device.platform == "gpu" and _PINNED in kinds


def cut_out(
    arrays: Sequence[Shaped[Array, "*shard"]], cuts: tuple[Cut, ...]
) -> list[Shaped[Array, "*region"]]:
    """Copies regions of one device's arrays, in one program."""
    return _cut_out(list(arrays), np.float32(1), cuts=cuts)[0]


@jax.jit
def _copied(tree: T, one: Float[Array, ""]) -> tuple[T, Float[Array, ""]]:
    return jax.tree.map(jnp.copy, tree), _busy(one)


@functools.partial(jax.jit, static_argnames="cuts")
def _cut_out(
    arrays: list[Shaped[Array, "*shard"]], one: Float[Array, ""], cuts: tuple[Cut, ...]
) -> tuple[list[Shaped[Array, "*region"]], Float[Array, ""]]:
    regions = [
        jnp.copy(arrays[number][tuple(slice(*interval) for interval in region)])
        for number, region in cuts
    ]
    return regions, _busy(one)


def _busy(one: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sum(one * jnp.arange(_OPERATIONS, dtype=jnp.float32))
