"""Assembly of an explorer's parameters from the parts that it fetches."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Shaped

from rl_sync.types import Params
from rl_sync.weights.regions import Region, device_regions, join, overlap, shape_of, within
from rl_sync.weights.server_manifest import Manifest


class _Source(NamedTuple):
    """Share of one part in a shard: the piece's index in the part, its region, and the overlap."""

    part: int
    piece: int
    piece_region: Region
    shared: Region


class _Shard(NamedTuple):
    """A region of a leaf in this process, assembled on one device and copied to the others.

    Attributes:
      whole: whether it consists of one piece that is the shard itself.
    """

    region: Region
    dtype: jnp.dtype
    devices: tuple[jax.Device, ...]
    sources: tuple[_Source, ...]
    whole: bool


class Assembly:
    """Assembles the parts of each version into this process's shards; planned once.

    Args:
      like: the parameters as arrays or `jax.ShapeDtypeStruct`s, with the target shardings.
      manifest: the parts.

    Attributes:
      wanted: the parts that are needed here, in the order of need: the shape and dtype of each, and
        the device where it arrives.
    """

    def __init__(self, like: Params, manifest: Manifest) -> None:
        self._manifest = manifest
        self._leaves, self._treedef = jax.tree.flatten(like)
        self._shards = _shards(self._leaves, manifest)
        self._devices = [_local_devices(leaf) for leaf in self._leaves]
        self._uses: collections.Counter[int] = collections.Counter()
        self.wanted: dict[int, jax.ShapeDtypeStruct] = {}
        for shard in (shard for of in self._shards for shard in of):
            for index in {source.part: 0 for source in shard.sources}:
                self._uses[index] += 1
                if index not in self.wanted:
                    like = manifest.like(manifest.parts[index])
                    place = SingleDeviceSharding(shard.devices[0])
                    self.wanted[index] = jax.ShapeDtypeStruct(
                        like.shape, like.dtype, sharding=place
                    )

    def assemble(
        self, arrive: Callable[[int], Array], finish: Callable[[int, Array], None]
    ) -> Params:
        """Makes the parameters of one version.

        Args:
          arrive: returns a part, and may wait for it; called once for each wanted part.
          finish: called with each leaf and its number in flattening order, once its local shards
            are complete.
        """
        uses = dict(self._uses)
        arrived: dict[int, list[Array]] = {}
        leaves = []
        for number, like in enumerate(self._leaves):
            made: dict[jax.Device, Array] = {}
            for shard in self._shards[number]:
                for source in shard.sources:
                    if source.part not in arrived:
                        part = self._manifest.parts[source.part]
                        arrived[source.part] = self._manifest.unpack(part, arrive(source.part))
                made |= _make(shard, [arrived[of.part][of.piece] for of in shard.sources])
                for index in {source.part for source in shard.sources}:
                    uses[index] -= 1
                    if not uses[index]:
                        del arrived[index]  # The shard holds it; free it here.
            leaves.append(_whole(like, [made[device] for device in self._devices[number]]))
            finish(number, leaves[-1])
        return jax.tree.unflatten(self._treedef, leaves)


def _shards(leaves: Sequence[Any], manifest: Manifest) -> tuple[tuple[_Shard, ...], ...]:
    """Returns for each leaf the distinct shards of this process, and the sources of each."""
    pieces: dict[int, list[tuple[int, int, Region]]] = {}
    for index, part in enumerate(manifest.parts):
        for place, piece in enumerate(part.pieces):
            pieces.setdefault(piece.leaf, []).append((index, place, piece.region))
    planned = []
    for number, leaf in enumerate(leaves):
        regions, devices = device_regions(leaf), dict[Region, list[jax.Device]]()
        for device in _local_devices(leaf):
            devices.setdefault(regions[device], []).append(device)
        shards = []
        for region, holding in devices.items():
            sources = tuple(
                _Source(part, place, whole, shared)
                for part, place, whole in pieces.get(number, [])
                if (shared := overlap(whole, region)) is not None
            )
            is_piece = len(sources) == 1 and sources[0].piece_region == region
            shards.append(_Shard(region, leaf.dtype, tuple(holding), sources, is_piece))
        planned.append(tuple(shards))
    return tuple(planned)


def _make(shard: _Shard, pieces: Sequence[Array]) -> dict[jax.Device, Array]:
    """Makes a shard on each of its devices."""
    first, *others = shard.devices
    if not pieces:
        made = jnp.zeros(shape_of(shard.region), shard.dtype, device=first)
    elif shard.whole:
        made = _on(first, pieces[0])
    else:
        places = tuple((source.piece_region, source.shared) for source in shard.sources)
        values = [_on(first, piece) for piece in pieces]
        made = _join(_relative(shard.region, places), values)
    return {first: made} | {device: jax.device_put(made, device) for device in others}


def _on(device: jax.Device, array: Array) -> Array:
    return array if array.devices() == {device} else jax.device_put(array, device)


def _relative(
    region: Region, places: tuple[tuple[Region, Region], ...]
) -> tuple[Region, tuple[tuple[Region, Region], ...]]:
    """Moves a plan to the origin, so that shards of the same form are compiled once."""

    def moved(inner: Region) -> Region:
        return tuple((a - o, b - o) for (a, b), (o, _) in zip(inner, region, strict=True))

    return moved(region), tuple((moved(whole), moved(shared)) for whole, shared in places)


@functools.partial(jax.jit, static_argnums=0)
def _join(
    plan: tuple[Region, tuple[tuple[Region, Region], ...]],
    values: list[Shaped[Array, "*piece"]],
) -> Shaped[Array, "*shard"]:
    region, places = plan
    cells = [
        (shared, value[within(shared, whole)])
        for (whole, shared), value in zip(places, values, strict=True)
    ]
    return join(region, cells)


def _local_devices(leaf: Any) -> list[jax.Device]:
    return [d for d in device_regions(leaf) if d.process_index == jax.process_index()]


def _whole(leaf: Any, shards: list[Array]) -> Array:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return shards[0]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)
