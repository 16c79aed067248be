"""A link moves parameters from the devices of one mesh to the devices of another, shard to shard.

The processes of both meshes enter the transfer together; only their dispatch order pairs them. In
addition to its parameters, and to the new ones on the target's side, each device holds at most one
bucket: a third each for data that it sends, data in flight (not on CPUs), and data that it
receives. Parameters that both sides shard in the same way, and that need not be cut, are sent
without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped

from rl_sync.types import Params
from rl_sync.weights.assembly import LeafAssembly, take, zeros
from rl_sync.weights.cells import Piece, mesh_regions
from rl_sync.weights.digest import UNSIGNED, check_dtype
from rl_sync.weights.routes import Bundle, CellBox, LinkPlan, plan_transfer

BUCKET_BYTES = 256 * 2**20
_AXIS = "device"
_WORD_BYTES = 4

_Arrays = list[Shaped[Array, "*shape"]]
_Kind = tuple[tuple[int, ...], np.dtype]


class Link:
    """A link from one mesh to another. Both sides make the same plan, once.

    Args:
      source: abstract params with their shardings on the sending mesh.
      target: abstract params with their shardings on the receiving mesh; the two share no device.
      bucket_bytes: maximum size of a bucket; the same on both sides.

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
        self._dtypes = {
            number: wire_dtype(np.dtype(leaf.dtype), self._senders[0].platform)
            for number, leaf in enumerate(jax.tree.leaves(source))
        }
        everyone = [*self._senders, *self._receivers]
        regions = [*mesh_regions(source), *mesh_regions(target)]
        self._held = {
            device: dict(enumerate(of)) for device, of in zip(everyone, regions, strict=True)
        }
        mesh = Mesh(np.array(everyone), (_AXIS,))
        self._here = [device for device in everyone if _is_here(device)]
        self._sharded = NamedSharding(mesh, PartitionSpec(_AXIS))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._plan = plan(source, target, bucket_bytes)
        self._movers = [_mover(mesh, bundle, len(self._senders)) for bundle in self._plan.bundles]

    def lower(self) -> list[jax.stages.Lowered]:
        """Lowers the programs that move data; the devices need not be present."""
        wave = jax.ShapeDtypeStruct((), np.int32, sharding=self._replicated)
        lowered = {}
        for number, bundle in enumerate(self._plan.bundles):
            for turn in bundle.turns:
                kinds = tuple((self._shape(box.shape), self._dtypes[box.leaf]) for box in turn)
                load = [jax.ShapeDtypeStruct(*kind, sharding=self._sharded) for kind in kinds]
                if (number, kinds) not in lowered:
                    lowered[number, kinds] = self._movers[number].lower(load, wave)
        return list(lowered.values())

    def send(self, params: Params) -> None:
        """Sends the parameters, on the source's side; blocks until the target has everything.

        Raises:
          ValueError: `params` does not match the plan.
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        self._check(params)
        self._run(self._shards(params), {})

    def receive(self) -> Params:
        """Receives the parameters in the target's sharding; blocks until all have arrived.

        Raises:
          jax.errors.JaxRuntimeError: the other side is gone.
        """
        return self._received({})

    def _received(self, shards: Mapping[jax.Device, Mapping[int, Array]]) -> Params:
        """Receives the parameters; this process's devices also send the shards that they have."""
        assemblies = {
            device: LeafAssembly(device, self._dtypes, self._held[device])
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
        """Returns the shards of this process's devices, by the leaves' numbers."""
        shards: dict[jax.Device, dict[int, Array]] = {}
        for number, leaf in enumerate(jax.tree.leaves(params)):
            for shard in leaf.addressable_shards:
                part = viewed(shard.data, self._dtypes[number])
                shards.setdefault(shard.device, {})[number] = part
        return shards

    def _run(
        self,
        shards: Mapping[jax.Device, Mapping[int, Array]],
        assemblies: Mapping[jax.Device, LeafAssembly],
    ) -> None:
        """Sends parts of shards on some devices, and assembles parts on others."""
        for device, assembly in assemblies.items():
            assembly.make_room(self._cut_leaves(device))
        blanks: dict[jax.Device, dict[_Kind, Array]] = {}
        for bundle, move in zip(self._plan.bundles, self._movers, strict=True):
            for turn in bundle.turns:
                for number, wave in enumerate(bundle.waves):
                    sent: dict[jax.Device, list[Piece]] = {}
                    arriving: dict[jax.Device, list[Piece]] = {}
                    for route in wave:
                        source, target = bundle.routes[route]
                        pieces = [Piece(box.leaf, box.regions[route]) for box in turn]
                        sent[self._senders[source]] = arriving[self._receivers[target]] = pieces
                    loads = []
                    for device in self._here:
                        if device in sent and device in shards:
                            blanks.pop(device, None)
                            loads.append(take(sent[device], shards[device], self._held[device]))
                        else:
                            loads.append(self._blank(turn, device, blanks))
                    moved = self._moved(move, loads, number)
                    loads.clear()
                    for device, assembly in assemblies.items():
                        if device in arriving:
                            assembly.add(arriving[device], moved[device])
                    del moved  # Free it before the next one is sent.

    def _moved(
        self, move: jax.stages.Wrapped, loads: Sequence[_Arrays], wave: int
    ) -> dict[jax.Device, _Arrays]:
        """Exchanges the loads of this process's devices; returns the arrays that each received."""
        joined = [
            jax.make_array_from_single_device_arrays(
                self._shape(parts[0].shape),
                self._sharded,
                [x if x.ndim else x[None] for x in parts],
            )
            for parts in zip(*loads, strict=True)
        ]
        number = jax.make_array_from_callback((), self._replicated, lambda _: np.int32(wave))
        # One collective at a time: only the order of dispatch pairs the two sides.
        moved = jax.block_until_ready(move(joined, number))
        arrived: dict[jax.Device, _Arrays] = {device: [] for device in self._here}
        for array, part in zip(moved, loads[0], strict=True):
            for shard in array.addressable_shards:
                arrived[shard.device].append(shard.data.reshape(part.shape))
        return arrived

    def _blank(
        self,
        turn: Sequence[CellBox],
        device: jax.Device,
        blanks: dict[jax.Device, dict[_Kind, Array]],
    ) -> _Arrays:
        """Returns the arrays that a device sends when it has nothing to send: one of each kind.

        They are kept in `blanks`, as the next turn often needs the same.
        """
        kinds = [(box.shape, self._dtypes[box.leaf]) for box in turn]
        if blanks.get(device, {}).keys() != set(kinds):
            blanks.pop(device, None)  # Freed before new ones are made.
            blanks[device] = {kind: zeros(device, *kind) for kind in set(kinds)}
        return [blanks[device][kind] for kind in kinds]

    def _cut_leaves(self, device: jax.Device) -> list[int]:
        """Returns the leaves whose shard does not reach a receiver as one piece."""
        number, held = self._receivers.index(device), self._held[device]
        return sorted(
            {
                box.leaf
                for bundle in self._plan.bundles
                for turn in bundle.turns
                for box in turn
                for (_, target), region in zip(bundle.routes, box.regions, strict=True)
                if target == number and region != held[box.leaf]
            }
        )

    def _shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the global shape of one part per device; parts may be scalars."""
        first, *others = part or (1,)
        return first * self._sharded.mesh.size, *others

    def _check(self, params: Params) -> None:
        """Raises a ValueError that names the first leaf that differs from the planned source."""
        planned = jax.tree_util.tree_leaves_with_path(self._source)
        given, got = jax.tree_util.tree_flatten_with_path(params)
        wanted: object = jax.tree.structure(self._source)
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


def plan(source: Params, target: Params, bucket_bytes: int = BUCKET_BYTES) -> LinkPlan:
    """Plans a link's transfer; arguments as for `Link`, but the meshes may be abstract.

    Raises:
      ValueError: buckets are too small.
    """
    dtypes = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(source)]
    return plan_transfer(dtypes, mesh_regions(source), mesh_regions(target), bucket_bytes)


def wire_dtype(dtype: np.dtype, platform: str) -> np.dtype:
    """Returns the dtype in which a leaf is cut, sent and assembled.

    On CPUs XLA widens floats below 32 bits to float32 for a transfer, which doubles their bytes and
    changes NaNs; it also does so when it writes them into arrays. It leaves integers unchanged.
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < _WORD_BYTES
    return np.dtype(UNSIGNED[dtype.itemsize]) if narrow and platform == "cpu" else dtype


def viewed(x: Shaped[Array, "*shape"], dtype: np.dtype) -> Shaped[Array, "*shape"]:
    """Views an array as another dtype; this needs an array in host memory if the dtype differs."""
    return x if x.dtype == dtype else jax.device_put(np.asarray(x).view(dtype), x.sharding)


def _mover(mesh: Mesh, bundle: Bundle, senders: int) -> jax.stages.Wrapped:
    """Makes the program that moves loads along the routes of a wave; the wave is an argument."""
    waves = [
        [(source, senders + target) for source, target in (bundle.routes[of] for of in wave)]
        for wave in bundle.waves
    ]

    def along(routes: list[tuple[int, int]]) -> Callable[[_Arrays], _Arrays]:
        return lambda load: [lax.ppermute(x, _AXIS, routes) for x in load]

    def move(load: _Arrays, wave: Int[Array, ""]) -> _Arrays:
        if len(waves) == 1:
            return along(waves[0])(load)
        return lax.switch(wave, [along(routes) for routes in waves], load)

    spec = PartitionSpec(_AXIS)
    return jax.jit(
        jax.shard_map(
            move, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False
        )
    )


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _devices(params: Params) -> list[jax.Device]:
    """Returns the devices of the parameters' mesh, in its order."""
    return list(jax.tree.leaves(params)[0].sharding.mesh.devices.flat)
