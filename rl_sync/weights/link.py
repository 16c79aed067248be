"""A link moves parameters from the devices of one mesh to those of another, shard to shard.

The processes of both meshes enter it together; nothing but the order in which they dispatch pairs
them. Each of their devices holds at most two buckets besides what it has anyway: one that it
sends, and one that arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, UInt32

from rl_sync.types import Params
from rl_sync.weights.digest import check_dtype
from rl_sync.weights.packing import cut_of, pack, unpack
from rl_sync.weights.routes import Box, Placed, Route, plan_transfer

BUCKET_BYTES = 64 * 2**20

_AXIS = "device"

Shards = dict[jax.Device, list[Array]]
"""Of each device of this process its part of every parameter."""


class Link:
    """The way from one mesh to another; planned once, by both sides alike.

    Args:
      source, target: the parameters' shapes, dtypes and shardings on either side; the meshes have
        no device in common.
      bucket_bytes: the most that a bucket may hold; the same on both sides.

    Raises:
      ValueError: the sides are of different models, or share a device, or buckets are too small.
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
        pairs = zip(jax.tree.leaves(source), jax.tree.leaves(target), strict=True)
        self._leaves = [
            Placed(a.dtype.itemsize, _boxes(a, self._senders), _boxes(b, self._receivers))
            for a, b in pairs
        ]
        self._plan = plan_transfer(self._leaves, bucket_bytes)
        everyone = np.array([*self._senders, *self._receivers])
        mesh = Mesh(everyone, (_AXIS,))
        self._spread = NamedSharding(mesh, PartitionSpec(_AXIS))
        self._movers = [self._mover(mesh, wave) for wave in self._plan.waves]

    def send(self, params: Params) -> None:
        """The source's side. Blocks until the target has everything.

        Raises:
          ValueError: `params` is not as planned.
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        self._check(params)
        shards = _shards(params)
        held = {device: self._held(device, "sources") for device in shards}
        for number, wave in enumerate(self._plan.waves):
            for turn in range(_turns(wave)):
                sent: dict[jax.Device, UInt32[Array, " W"]] = {}
                for route in wave:
                    device = self._senders[route.source]
                    if device in shards and turn < len(route.buckets):
                        cut = cut_of(route.buckets[turn], held[device])
                        arrays = [shards[device][leaf] for leaf in cut.leaves]
                        words = self._plan.bucket_words
                        sent[device] = pack(arrays, cut.starts, sizes=cut.sizes, words=words)
                self._enter(number, sent)

    def receive(self) -> Params:
        """The target's side. Blocks until it has everything; gives it in the target's sharding.

        Raises:
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        shards = {device: self._blank(device) for device in self._receivers if _is_here(device)}
        held = {device: self._held(device, "targets") for device in shards}
        nothing = {device: self._empty(device) for device in shards}
        for number, wave in enumerate(self._plan.waves):
            for turn in range(_turns(wave)):
                arrived = self._enter(number, nothing)
                for route in wave:
                    device = self._receivers[route.target]
                    if device in shards and turn < len(route.buckets):
                        cut = cut_of(route.buckets[turn], held[device])
                        mine = shards[device]
                        arrays = [mine[leaf] for leaf in cut.leaves]
                        filled = unpack(arrays, arrived[device], cut.starts, sizes=cut.sizes)
                        for leaf, array in zip(cut.leaves, filled, strict=True):
                            mine[leaf] = array
        leaves, treedef = jax.tree.flatten(self._target)
        return jax.tree.unflatten(
            treedef,
            [
                jax.make_array_from_single_device_arrays(
                    leaf.shape, leaf.sharding, [mine[number] for mine in shards.values()]
                )
                for number, leaf in enumerate(leaves)
            ],
        )

    def _mover(self, mesh: Mesh, wave: tuple[Route, ...]) -> Any:
        steps = [(route.source, len(self._senders) + route.target) for route in wave]
        spec = self._spread.spec

        def move(bucket: UInt32[Array, " W"]) -> UInt32[Array, " W"]:
            return lax.ppermute(bucket, _AXIS, steps)

        return jax.jit(jax.shard_map(move, mesh=mesh, in_specs=spec, out_specs=spec))

    def _enter(
        self, wave: int, sent: Mapping[jax.Device, UInt32[Array, " W"]]
    ) -> dict[jax.Device, UInt32[Array, " W"]]:
        """One turn of a wave: what this process's devices send, and what each gets."""
        here = [device for device in self._spread.mesh.devices.flat if _is_here(device)]
        mine = [sent[device] if device in sent else self._empty(device) for device in here]
        shape = (self._spread.mesh.size * self._plan.bucket_words,)
        everything = jax.make_array_from_single_device_arrays(shape, self._spread, mine)
        # One collective at a time: nothing but the order of dispatch pairs the two sides.
        moved = jax.block_until_ready(self._movers[wave](everything))
        return {shard.device: shard.data for shard in moved.addressable_shards}

    def _empty(self, device: jax.Device) -> UInt32[Array, " W"]:
        """What a device puts in that sends nothing."""
        return jnp.zeros((self._plan.bucket_words,), jnp.uint32, device=device)

    def _held(self, device: jax.Device, side: str) -> list[Box]:
        """What a device has of each parameter, or is to have."""
        devices = self._senders if side == "sources" else self._receivers
        return [getattr(leaf, side)[devices.index(device)] for leaf in self._leaves]

    def _blank(self, device: jax.Device) -> list[Array]:
        """Room for what a device is to have."""
        shapes = [tuple(high - low for low, high in box) for box in self._held(device, "targets")]
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(self._target)]

        def zeros() -> list[Array]:
            return [jnp.zeros(*kind) for kind in zip(shapes, dtypes, strict=True)]

        return jax.jit(zeros, out_shardings=SingleDeviceSharding(device))()

    def _check(self, params: Params) -> None:
        """Raises a ValueError that names the first leaf that is not as the source's."""
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


def _turns(wave: tuple[Route, ...]) -> int:
    return max(len(route.buckets) for route in wave)


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _devices(like: Params) -> list[jax.Device]:
    """The devices of the parameters' mesh, in its order."""
    return list(jax.tree.leaves(like)[0].sharding.mesh.devices.flat)


def _boxes(leaf: jax.ShapeDtypeStruct, devices: list[jax.Device]) -> tuple[Box, ...]:
    assert leaf.sharding is not None, "both sides say where their parameters lie"
    indices = leaf.sharding.devices_indices_map(leaf.shape)
    return tuple(
        tuple(
            part.indices(size)[:2] for part, size in zip(indices[device], leaf.shape, strict=True)
        )
        for device in devices
    )


def _shards(params: Params) -> Shards:
    """What this process's devices have of the parameters."""
    shards: Shards = {}
    for leaf in jax.tree.leaves(params):
        for shard in leaf.addressable_shards:
            shards.setdefault(shard.device, []).append(shard.data)
    return shards
