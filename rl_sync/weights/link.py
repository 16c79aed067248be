"""A link moves parameters from the devices of one mesh to those of another, shard to shard.

The processes of both meshes enter it together; only the order of their dispatches pairs them.
Beside its parameters, and the new ones on the target's side, each device holds at most one bucket.
Except on CPUs it is half a bucket that each turn makes anew, sends, and gets back filled with what
arrives, and some parts of it under way. On CPUs the one half is for what the device sends, the
other for what it receives, and large parameters that both sides shard in the same way are sent
without a copy where they need not be cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from rl_sync.types import Params
from rl_sync.weights.assembly import Assembly, blanks
from rl_sync.weights.digest import check_dtype
from rl_sync.weights.loads import (
    Load,
    load,
    load_programs,
    unload,
    unload_programs,
    viewed,
    wire_dtype,
)
from rl_sync.weights.movers import AXIS, mover
from rl_sync.weights.packing import Kind, Kinds
from rl_sync.weights.regions import mesh_regions, shape_of
from rl_sync.weights.routes import Bucket, Transfer, plan_transfer

BUCKET_BYTES = 256 * 2**20


class Link:
    """A link from one mesh to another. Both sides make the same plan, once.

    Args:
      source, target: the parameters' shapes, dtypes and shardings on either side; the meshes have
        no device in common.
      bucket_bytes: the largest size of a bucket; the same on both sides.
      donate: whether what arrives takes the memory of what is sent; by default everywhere but on
        CPUs, where a transfer without copies is faster. The same on both sides.

    Raises:
      ValueError: the sides have different models or share a device, or buckets are too small.
      TypeError: a leaf's dtype has no plain bits.
    """

    def __init__(
        self,
        source: Params,
        target: Params,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        donate: bool | None = None,
    ) -> None:
        self._source, self._target = source, target
        self._check(target)
        for path, leaf in jax.tree_util.tree_leaves_with_path(source):
            check_dtype(jax.tree_util.keystr(path), leaf.dtype)
        self._senders, self._receivers = _devices(source), _devices(target)
        if shared := set(self._senders) & set(self._receivers):
            raise ValueError(f"A link joins two meshes without a common device, not {shared}.")
        platform = self._senders[0].platform
        self._dtypes = {
            number: wire_dtype(np.dtype(leaf.dtype), platform)
            for number, leaf in enumerate(jax.tree.leaves(source))
        }
        sides = mesh_regions(source), mesh_regions(target)
        held = zip([*self._senders, *self._receivers], [*sides[0], *sides[1]], strict=True)
        self._held = {device: dict(enumerate(regions)) for device, regions in held}
        self._plan = plan(source, target, bucket_bytes)
        self._donate = platform != "cpu" if donate is None else donate
        self._kinds = [
            [(shape, self._dtypes[leaf]) for leaf, shape in form.slots]
            + [((form.words,), np.dtype(np.uint32))] * bool(form.words)
            for form in self._plan.formats
        ]
        mesh = Mesh(np.array([*self._senders, *self._receivers]), (AXIS,))
        self._here = [device for device in mesh.devices.flat if _is_here(device)]
        self._spread = NamedSharding(mesh, PartitionSpec(AXIS))
        steps = [
            [(route.source, len(self._senders) + route.target) for route in wave.routes]
            for wave in self._plan.waves
        ]
        self._members = [
            [number for number, wave in enumerate(self._plan.waves) if wave.format == form]
            for form in range(len(self._plan.formats))
        ]
        self._movers = [
            mover(mesh, [steps[number] for number in members], donate=self._donate)
            for members in self._members
        ]
        self._blanks: dict[jax.Device, dict[Kind, Array]] = {}

    @property
    def movers(self) -> int:
        """The number of programs that move data between devices."""
        return len(self._movers)

    @property
    def programs(self) -> int:
        """The number of programs that this process compiles for transfers, at most.

        A program that one device runs is compiled for each device that runs it.
        """
        return self.movers + sum(key != () for _, key in set(self._own_programs()))

    def lower(self) -> list[jax.stages.Lowered]:
        """Lowers the programs that move data; the devices need not be there."""
        everywhere = NamedSharding(self._spread.mesh, PartitionSpec())
        wave = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
        lowered = []
        for move, kinds in zip(self._movers, self._kinds, strict=True):
            load = [
                jax.ShapeDtypeStruct(self._shape(shape), dtype, sharding=self._spread)
                for shape, dtype in kinds
            ]
            lowered.append(move.lower(load, wave))
        return lowered

    def send(self, params: Params) -> None:
        """Sends the parameters, on the source's side; blocks until the target has everything.

        Raises:
          ValueError: `params` is not as planned.
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        self._check(params)
        self._run(self._shards(params), {})

    def receive(self) -> Params:
        """Receives the parameters in the target's sharding; blocks until it has everything.

        Raises:
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        return self._received({})

    def _received(self, shards: Mapping[jax.Device, Mapping[int, Array]]) -> Params:
        """Receives the parameters; sends shards on those devices of this process that have them."""
        assemblies = {
            device: Assembly(device, self._dtypes, self._held[device])
            for device in self._receivers
            if _is_here(device)
        }
        self._run(shards, assemblies)
        leaves, treedef = jax.tree.flatten(self._target)
        return jax.tree.unflatten(
            treedef,
            [
                jax.make_array_from_single_device_arrays(
                    leaf.shape,
                    leaf.sharding,
                    [viewed(of.pop(number), leaf.dtype) for of in assemblies.values()],
                )
                for number, leaf in enumerate(leaves)
            ],
        )

    def _shards(self, params: Params) -> dict[jax.Device, dict[int, Array]]:
        """Returns this process's devices' parts of the leaves, by the leaves' numbers."""
        shards: dict[jax.Device, dict[int, Array]] = {}
        for number, leaf in enumerate(jax.tree.leaves(params)):
            for shard in leaf.addressable_shards:
                part = viewed(shard.data, self._dtypes[number])
                shards.setdefault(shard.device, {})[number] = part
        return shards

    def _run(
        self,
        shards: Mapping[jax.Device, Mapping[int, Array]],
        assemblies: Mapping[jax.Device, Assembly],
    ) -> None:
        """Runs all turns: sends parts of shards on some devices, assembles parts on others."""
        for device, assembly in assemblies.items():
            assembly.make_room(self._pieced(device))
        for number, wave in enumerate(self._plan.waves):
            for turn in range(self._plan.formats[wave.format].turns):
                # Nothing of a turn remains when the next one begins.
                self._enter(number, turn, shards, assemblies)
        self._blanks.clear()

    def _enter(
        self,
        number: int,
        turn: int,
        shards: Mapping[jax.Device, Mapping[int, Array]],
        assemblies: Mapping[jax.Device, Assembly],
    ) -> None:
        """Runs one turn of a wave."""
        wave = self._plan.waves[number]
        sent = {self._senders[route.source]: route.buckets[turn] for route in wave.routes}
        loads = [self._load(wave.format, d, sent.get(d), shards.get(d)) for d in self._here]
        everything = [self._joined(parts) for parts in zip(*loads, strict=True)]
        # One collective at a time: only the order of dispatch pairs the two sides.
        move = self._movers[wave.format]
        moved = jax.block_until_ready(move(everything, self._member(number)))
        arrived: dict[jax.Device, Load] = {device: [] for device in self._here}
        for array in moved:
            for shard in array.addressable_shards:
                arrived[shard.device].append(shard.data)
        for route in wave.routes:
            device = self._receivers[route.target]
            if device in assemblies:
                bucket, assembly = route.buckets[turn], assemblies[device]
                # Each turn has all words.
                unload(bucket, arrived[device], assembly, words=turn == 0)

    def _load(
        self,
        form: int,
        device: jax.Device,
        bucket: Bucket | None,
        shards: Mapping[int, Array] | None,
    ) -> Load:
        """Builds the load of a device, from its shards if it sends a bucket of them."""
        if shards is None:
            bucket = None
        missing = self._missing(form, bucket)
        empty = iter(self._empty(device, missing))
        sent: dict[int, Array] = {}
        if bucket is not None and shards is not None:
            words, held = self._plan.formats[form].words, self._held[device]
            sent = load(bucket, shards, held, words, copy=self._donate)
        places = range(len(self._kinds[form]))
        return [sent[place] if place in sent else next(empty) for place in places]

    def _missing(self, form: int, bucket: Bucket | None) -> Kinds:
        """Returns the kinds of a load that a bucket, if there is one, does not fill."""
        filled = [] if bucket is None else [*map(bool, bucket.single), bool(bucket.packed)]
        pairs = itertools.zip_longest(self._kinds[form], filled[: len(self._kinds[form])])
        return tuple(kind for kind, is_filled in pairs if not is_filled)

    def _empty(self, device: jax.Device, kinds: Kinds) -> Sequence[Array]:
        """Makes arrays of some kinds, which nobody reads."""
        made = self._blank(kinds)
        if self._donate:
            return blanks(device, made)
        if self._blanks.get(device, {}).keys() != set(made):  # The next turn often uses them again.
            self._blanks.pop(device, None)  # Freed before others are made.
            self._blanks[device] = dict(zip(made, blanks(device, made), strict=True))
        return [self._blanks[device][kind] for kind in kinds]

    def _blank(self, kinds: Kinds) -> Kinds:
        """Returns the kinds of arrays to make: what is not donated may be entered twice."""
        return kinds if self._donate else tuple(dict.fromkeys(kinds))

    def _joined(self, parts: Sequence[Array]) -> Array:
        """Joins each device's part into one array of the mesh."""
        shape = self._shape(parts[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self._spread, list(parts))

    def _shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        first, *others = part
        return first * self._spread.mesh.size, *others

    def _member(self, number: int) -> Array:
        """Returns a wave's number among those of its format, on all devices."""
        member = self._members[self._plan.waves[number].format].index(number)
        everywhere = NamedSharding(self._spread.mesh, PartitionSpec())
        parts = [jax.device_put(np.int32(member), device) for device in self._here]
        return jax.make_array_from_single_device_arrays((), everywhere, parts)

    def _pieced(self, device: jax.Device) -> list[int]:
        """Returns the leaves of which a receiver gets less than its whole part at once."""
        held = self._held[device]
        return sorted(
            {
                piece.leaf
                for wave in self._plan.waves
                for route in wave.routes
                if self._receivers[route.target] == device
                for bucket in route.buckets
                for piece in (*bucket.single, *bucket.packed)
                if piece and piece.region != held[piece.leaf]
            }
        )

    def _own_programs(self) -> Iterator[tuple[jax.Device, Hashable]]:
        """Yields what distinguishes the programs that this process's devices run alone."""
        for device in self._here:
            held = self._held[device]
            if device in self._receivers:
                leaves = self._pieced(device)
                yield device, tuple((shape_of(held[leaf]), self._dtypes[leaf]) for leaf in leaves)
            for wave in self._plan.waves:
                sent = {self._senders[route.source]: route.buckets for route in wave.routes}
                got = {self._receivers[route.target]: route.buckets for route in wave.routes}
                for turn in range(self._plan.formats[wave.format].turns):
                    bucket = sent[device][turn] if device in sent else None
                    yield device, self._blank(self._missing(wave.format, bucket))
                    if bucket is not None:
                        for key in load_programs(bucket, held, self._dtypes, copy=self._donate):
                            yield device, key
                    if device in got:
                        for key in unload_programs(got[device][turn], held, self._dtypes):
                            yield device, key

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


def plan(source: Params, target: Params, bucket_bytes: int = BUCKET_BYTES) -> Transfer:
    """Plans the transfer of a link; arguments as for `Link`, but the meshes may be abstract ones.

    The plan has as many formats as the link has movers.

    Raises:
      ValueError: buckets are too small.
    """
    dtypes = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(source)]
    # The other half is for what is under way.
    return plan_transfer(dtypes, mesh_regions(source), mesh_regions(target), bucket_bytes // 2)


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _devices(like: Params) -> list[jax.Device]:
    """Returns the devices of the parameters' mesh, in its order."""
    return list(jax.tree.leaves(like)[0].sharding.mesh.devices.flat)
