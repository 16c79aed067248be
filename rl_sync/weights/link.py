"""A link moves parameters from the devices of one mesh to those of another, shard to shard.

The processes of both meshes enter it together; only the order of their dispatches pairs them.
Beside its parameters, and the new ones on the target's side, each device holds at most one bucket:
half of it for what the device sends, half for what it receives. Large parameters that both sides
shard in the same way are sent without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.assembly import Assembly, blanks
from rl_sync.weights.digest_plan import check_dtype
from rl_sync.weights.loads import Load, load, unload, wire_dtype
from rl_sync.weights.packing import kinds_of
from rl_sync.weights.regions import mesh_regions
from rl_sync.weights.routes import Wave, plan_transfer

BUCKET_BYTES = 256 * 2**20

_AXIS = "device"


class Link:
    """A link from one mesh to another. Both sides make the same plan, once.

    Args:
      source, target: the parameters' shapes, dtypes and shardings on either side; the meshes have
        no device in common.
      bucket_bytes: the largest size of a bucket; the same on both sides.

    Raises:
      ValueError: the sides have different models or share a device, or buckets are too small.
      TypeError: a leaf's dtype has no plain bits.
    """

    def __init__(self, source: Params, target: Params, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._source, self._target = source, target
        self._check(target)
        for path, leaf in jax.tree_util.tree_leaves_with_path(source):
            check_dtype(jax.tree_util.keystr(path), leaf.dtype)
        self._senders, self._receivers = _devices(source), _devices(target)
        if shared := set(self._senders) & set(self._receivers):
            raise ValueError(f"A link joins two meshes without a common device, not {shared}.")
        leaves = jax.tree.leaves(source)
        self._dtypes = {leaf: np.dtype(like.dtype) for leaf, like in enumerate(leaves)}
        sides = mesh_regions(source), mesh_regions(target)
        held = zip([*self._senders, *self._receivers], [*sides[0], *sides[1]], strict=True)
        self._held = {device: dict(enumerate(regions)) for device, regions in held}
        # Each device sends as much as it receives.
        itemsizes = [dtype.itemsize for dtype in self._dtypes.values()]
        self._waves = plan_transfer(itemsizes, *sides, bucket_bytes // 2)
        platform = self._senders[0].platform
        self._sent = {leaf: wire_dtype(dtype, platform) for leaf, dtype in self._dtypes.items()}
        everyone = np.array([*self._senders, *self._receivers])
        mesh = Mesh(everyone, (_AXIS,))
        self._here = [device for device in everyone if _is_here(device)]
        self._spread = NamedSharding(mesh, PartitionSpec(_AXIS))
        self._movers = [self._mover(mesh, wave) for wave in self._waves]
        self._blanks: dict[tuple[jax.Device, tuple[int, ...], np.dtype], Array] = {}

    def send(self, params: Params) -> None:
        """Sends the parameters, on the source's side; blocks until the target has everything.

        Raises:
          ValueError: `params` is not as planned.
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        self._check(params)
        shards = _shards(params)
        for number, wave in enumerate(self._waves):
            for turn in range(len(wave.words)):
                sent: dict[jax.Device, Load] = {}
                for route in wave.routes:
                    device = self._senders[route.source]
                    if device in shards and turn < len(route.buckets):
                        bucket, words = route.buckets[turn], wave.words[turn]
                        sent[device] = load(bucket, shards[device], self._held[device], words)
                self._enter(number, turn, sent)
        self._blanks.clear()

    def receive(self) -> Params:
        """Receives the parameters in the target's sharding; blocks until it has everything.

        Raises:
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        assemblies = {
            device: Assembly(device, self._dtypes, self._held[device])
            for device in self._receivers
            if _is_here(device)
        }
        for number, wave in enumerate(self._waves):
            for turn in range(len(wave.words)):
                arrived = self._enter(number, turn, {})
                for route in wave.routes:
                    device = self._receivers[route.target]
                    if device in assemblies and turn < len(route.buckets):
                        bucket, assembly = route.buckets[turn], assemblies[device]
                        unload(bucket, arrived.pop(device), self._dtypes, assembly)
        self._blanks.clear()
        leaves, treedef = jax.tree.flatten(self._target)
        return jax.tree.unflatten(
            treedef,
            [
                jax.make_array_from_single_device_arrays(
                    leaf.shape, leaf.sharding, [of.pop(number) for of in assemblies.values()]
                )
                for number, leaf in enumerate(leaves)
            ],
        )

    def _mover(self, mesh: Mesh, wave: Wave) -> Any:
        steps = [(route.source, len(self._senders) + route.target) for route in wave.routes]
        spec = self._spread.spec

        def move(everything: Load) -> Load:
            return [lax.ppermute(x, _AXIS, steps) for x in everything]

        return jax.jit(jax.shard_map(move, mesh=mesh, in_specs=spec, out_specs=spec))

    def _enter(
        self, wave: int, turn: int, sent: Mapping[jax.Device, Load]
    ) -> dict[jax.Device, Load]:
        """Runs one turn of a wave: maps what this process's devices send to what each receives."""
        empty = self._empty(self._waves[wave], turn, [d for d in self._here if d not in sent])
        loads = [sent[device] if device in sent else empty[device] for device in self._here]
        everything = [self._joined(parts) for parts in zip(*loads, strict=True)]
        # One collective at a time: only the order of dispatch pairs the two sides.
        moved = jax.block_until_ready(self._movers[wave](everything))
        got: dict[jax.Device, Load] = {device: [] for device in self._here}
        for array in moved:
            for shard in array.addressable_shards:
                got[shard.device].append(shard.data)
        return got

    def _joined(self, parts: Sequence[Array]) -> Array:
        """Joins each device's part into one array of the mesh."""
        first, *others = parts[0].shape
        shape = (first * self._spread.mesh.size, *others)
        return jax.make_array_from_single_device_arrays(shape, self._spread, list(parts))

    def _empty(
        self, wave: Wave, turn: int, devices: Sequence[jax.Device]
    ) -> dict[jax.Device, Load]:
        """Makes the input of devices that send nothing; the next turn often uses it again."""
        bucket = wave.routes[0].buckets[turn]
        kinds = [*kinds_of(bucket.single, self._sent)]
        if wave.words[turn]:
            kinds.append(((wave.words[turn],), np.dtype(np.uint32)))
        wanted = {(device, *kind) for device in devices for kind in kinds}
        for gone in self._blanks.keys() - wanted:
            del self._blanks[gone]
        for device in devices:
            missing = tuple({kind: 0 for kind in kinds if (device, *kind) not in self._blanks})
            for kind, zeros in zip(missing, blanks(device, missing), strict=True):
                self._blanks[device, *kind] = zeros
        return {device: [self._blanks[device, *kind] for kind in kinds] for device in devices}

    def _check(self, params: Params) -> None:
        """Raises a ValueError that names the first leaf that differs from the planned source."""
        planned = jax.tree_util.tree_leaves_with_path(self._source)
        given, got = jax.tree_util.tree_flatten_with_path(params)
        wanted: Any = jax.tree.structure(self._source)
        if wanted != got:
            raise ValueError(
                f"The parameters have the structure {got}, but the transfer was planned for"
                f" {wanted}: make both sides from the same model."
            )
        for (path, leaf), (_, other) in zip(planned, given, strict=True):
            if (other.shape, other.dtype) != (leaf.shape, leaf.dtype):
                raise ValueError(
                    f"Parameter {jax.tree_util.keystr(path)} is {other.dtype}{list(other.shape)},"
                    f" but the transfer was planned for {leaf.dtype}{list(leaf.shape)}: make both"
                    " sides from the same model."
                )


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _devices(like: Params) -> list[jax.Device]:
    """Returns the devices of the parameters' mesh, in its order."""
    return list(jax.tree.leaves(like)[0].sharding.mesh.devices.flat)


def _shards(params: Params) -> dict[jax.Device, dict[int, Array]]:
    """Returns this process's devices' parts of the leaves, by the leaves' numbers."""
    shards: dict[jax.Device, dict[int, Array]] = {}
    for number, leaf in enumerate(jax.tree.leaves(params)):
        for shard in leaf.addressable_shards:
            shards.setdefault(shard.device, {})[number] = shard.data
    return shards
