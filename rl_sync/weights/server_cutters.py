"""Cutters: the programs by which a trainer's devices cut a version into the parts they offer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from rl_sync.types import Params
from rl_sync.weights.copies import dispatching
from rl_sync.weights.packing import pack, take
from rl_sync.weights.regions import Region, device_regions
from rl_sync.weights.server_manifest import Manifest

_PROGRAMS = 4


class Cutter(NamedTuple):
    """Function that makes some parts on one device from all leaves, with these parts' indices."""

    indices: tuple[int, ...]
    make: Callable[[list[Array]], list[Shaped[Array, "*part"]]]


def cutters(manifest: Manifest, like: Params) -> list[list[Cutter]]:
    """Makes the cutters of each device of this process, in the order to run them."""
    regions = [device_regions(leaf) for leaf in jax.tree.leaves(like)]
    likes = manifest.likes()
    by_device: dict[int, list[int]] = {}
    for index, part in enumerate(manifest.parts):
        if part.holder == jax.process_index():
            by_device.setdefault(part.device, []).append(index)
    made = []
    for device in jax.local_devices():
        if indices := by_device.get(device.id):
            held = {leaf: of[device] for leaf, of in enumerate(regions) if device in of}
            runs = _runs(indices, likes)
            made.append([Cutter(run, _maker(manifest, device, run, held)) for run in runs])
    return made


def _runs(indices: list[int], likes: Sequence[jax.ShapeDtypeStruct]) -> list[tuple[int, ...]]:
    """Splits parts into a few runs with about equal numbers of bytes."""
    nbytes = [likes[index].size * likes[index].dtype.itemsize for index in indices]
    runs: dict[int, list[int]] = {}
    for index, end in zip(indices, itertools.accumulate(nbytes), strict=True):
        runs.setdefault((end - 1) * _PROGRAMS // sum(nbytes), []).append(index)
    return [tuple(run) for run in runs.values()]


def _maker(
    manifest: Manifest, device: jax.Device, run: tuple[int, ...], held: Mapping[int, Region]
) -> Callable[[list[Array]], list[Shaped[Array, "*part"]]]:
    parts = [manifest.parts[index].pieces for index in run]
    used = sorted({piece.leaf for pieces in parts for piece in pieces})

    @dispatching
    def make(shards: dict[int, Shaped[Array, "*shard"]]) -> list[Shaped[Array, "*part"]]:
        return [
            pack(pieces, shards, held)
            if len(pieces) > 1
            else jnp.copy(take(pieces, shards, held)[0])
            for pieces in parts
        ]

    return lambda leaves: make({leaf: _shard(leaves[leaf], device) for leaf in used})


def _shard(leaf: Array, device: jax.Device) -> Shaped[Array, "*shard"]:
    return next(shard.data for shard in leaf.addressable_shards if shard.device == device)
