"""Plan of a digest for parameters of one structure: which device adds up which shards, and how."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Int, UInt32

from rl_sync.types import Params
from rl_sync.weights.regions import Region, device_regions, shape_of

_WORD = 0xFFFFFFFF
_LEAST_GROUP = 8
_MOST_GROUPS = 20


class Group(NamedTuple):
    """Shards of one shape and dtype that a device of this process adds up together.

    Attributes:
      leaves: the leaves of the shards.
      nth: for each leaf the index of the device's shard among the leaf's shards in this process.
      places: for each shard the row-major index in the leaf of its first word, and the stride of
        words along each axis.
    """

    leaves: tuple[int, ...]
    nth: tuple[int, ...]
    places: UInt32[np.ndarray, "group 1+axes"]


class Column(NamedTuple):
    """Work of one device of this process.

    Attributes:
      groups: the indices of its groups.
      order: for each leaf its place in the concatenated shards of these groups; the place after the
        last if it has none.
    """

    device: jax.Device
    groups: tuple[int, ...]
    order: Int[np.ndarray, " leaves"]


class Plan(NamedTuple):
    """Plan for adding up parameters of one structure.

    Attributes:
      salts: a hash of each leaf's path, shape and dtype.
      groups: all groups of this process.
      groups_of: for each leaf the indices of its groups.
      columns: the work of each device of this process.
      everywhere: the sharding of the columns of all processes.
    """

    salts: UInt32[np.ndarray, "leaves 2"]
    groups: tuple[Group, ...]
    groups_of: tuple[tuple[int, ...], ...]
    columns: tuple[Column, ...]
    everywhere: NamedSharding


def plan_digest(like: Params) -> Plan:
    """Plans a digest, once for all parameters of the same structure.

    Args:
      like: arrays or `jax.ShapeDtypeStruct`s, with their shardings; a leaf without one lies on the
        first device.

    Raises:
      TypeError: a leaf's dtype has no plain bits.
    """
    leaves, treedef = jax.tree.flatten(like)
    return _plan(treedef, tuple(_kind(leaf) for leaf in leaves))


def check_dtype(name: str, dtype: np.dtype) -> None:
    """Raises a TypeError unless the dtype's elements are whole bytes of plain bits."""
    if dtype == jnp.bool_:
        return
    if jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    else:
        bits = 0
    if bits < 8:
        raise TypeError(
            f"Parameter {name} has dtype {dtype}, which cannot be transferred: use boolean, integer"
            " or floating leaves of at least one byte (for PRNG keys, jax.random.key_data)."
        )


class _Kind(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: jax.sharding.Sharding


class _Shard(NamedTuple):
    leaf: int
    nth: int
    region: Region


def _kind(leaf: Any) -> _Kind:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = SingleDeviceSharding(jax.local_devices()[0])
    return _Kind(tuple(leaf.shape), leaf.dtype, sharding)


@functools.lru_cache(maxsize=32)
def _plan(treedef: Any, kinds: tuple[_Kind, ...]) -> Plan:
    numbered = jax.tree.unflatten(treedef, range(len(kinds)))
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(numbered)]
    for name, kind in zip(names, kinds, strict=True):
        check_dtype(name, kind.dtype)
    everywhere: set[jax.Device] = set()
    shards: dict[jax.Device, list[_Shard]] = {}
    for leaf, kind in enumerate(kinds):
        everywhere |= kind.sharding.device_set
        _add_shards(shards, leaf, kind)
    devices = sorted(everywhere, key=lambda device: device.id)
    groups: list[Group] = []
    columns = []
    for device in devices:
        if device.process_index == jax.process_index():
            mine = _groups(shards.get(device, []), kinds)
            numbers = range(len(groups), len(groups) + len(mine))
            columns.append(Column(device, tuple(numbers), _order(mine, len(kinds))))
            groups += mine
    groups_of: list[list[int]] = [[] for _ in kinds]
    for number, group in enumerate(groups):
        for leaf in group.leaves:
            groups_of[leaf].append(number)
    return Plan(
        np.array([_salts(*pair) for pair in zip(names, kinds, strict=True)], np.uint32),
        tuple(groups),
        tuple(map(tuple, groups_of)),
        tuple(columns),
        NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device")),
    )


def _add_shards(shards: dict[jax.Device, list[_Shard]], leaf: int, kind: _Kind) -> None:
    """Adds a leaf's shards to the first device that holds each; replicas are not added up again."""
    seen: set[Region] = set()
    nth = 0
    for device, region in device_regions(kind).items():
        is_here = device.process_index == jax.process_index()
        if is_here and region not in seen:
            shards.setdefault(device, []).append(_Shard(leaf, nth, region))
        nth += is_here
        seen.add(region)


def _groups(shards: list[_Shard], kinds: tuple[_Kind, ...]) -> list[Group]:
    alike: dict[Any, list[_Shard]] = {}
    for shard in shards:
        alike.setdefault((shape_of(shard.region), kinds[shard.leaf].dtype), []).append(shard)
    runs: list[list[_Shard]] = []
    for each in alike.values():
        length = max(_LEAST_GROUP, math.ceil(len(each) / _MOST_GROUPS))
        runs += (each[i : i + length] for i in range(0, len(each), length))
    return [
        Group(
            tuple(shard.leaf for shard in run),
            tuple(shard.nth for shard in run),
            np.array([_place(kinds[shard.leaf], shard.region) for shard in run], np.uint32),
        )
        for run in runs
    ]


def _place(kind: _Kind, region: Region) -> list[int]:
    shape = (*kind.shape, 2) if kind.dtype.itemsize > 4 else kind.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(start * stride for (start, _), stride in zip(region, strides, strict=False))
    return [number & _WORD for number in (first, *strides)]


def _order(groups: list[Group], leaves: int) -> Int[np.ndarray, " leaves"]:
    flat = [leaf for group in groups for leaf in group.leaves]
    order = np.full((leaves,), len(flat))
    order[flat] = np.arange(len(flat))
    return order


def _salts(path: str, kind: _Kind) -> list[int]:
    content = repr((path, kind.shape, kind.dtype.name)).encode()
    return np.frombuffer(hashlib.sha256(content).digest()[:8], dtype="<u4").tolist()
