"""Makes meshes and shardings: maps logical axis names to the shards of each device.

A program's devices form a mesh with named axes. Along `data`, parameters are replicated and rows
are sharded. Along `fsdp`, parameters are sharded, and gathered layer by layer (ZeRO,
arXiv:1910.02054). Along `context`, the positions of a row are sharded, and attention gathers keys
and values (Llama 3, arXiv:2407.21783, section 3.3.2); in an engine only while it prefills prompts:
its slots are sharded by rows. Along `experts`, rows are sharded, and so are
the experts of a mixture, to which tokens travel (GShard, arXiv:2006.16668). Along `tensor`, the
computation inside a layer is sharded (Megatron-LM, arXiv:1909.08053). Arrays have logical axis
names; a layout's rules map each of them to mesh axes.

An axis whose size is not divisible by its mesh axes is not sharded along them: the array is
replicated there.

Key and value heads are an exception. If a mesh axis has several devices for each such head, these
devices form a group: each of them has the group's key and value head, and an equal share of the
query heads that use it. They divide the slots of the head's cache, too. The mesh axis is then split
into two: the first has one group for each key and value head, and the second, `group`, has the
devices of a group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from rl_sync.models.mesh_shape import MeshShape, Rules

GROUP = "group"
"""Mesh axis of devices that share a key and value head."""
KV, HEADS = "kv", "heads"
"""Logical axes of key and value heads, and of the query heads that share one."""
SLOTS = "slots"
"""Logical axis of the slots of a cache, which only groups cut."""
MOST_SHARES = 16
"""Maximum number of devices that divide the slots of a cache; it must divide a page's lines."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and the rules for sharding arrays along it.

    Attributes:
      mesh: a mesh with the axes `MESH_AXES`; an abstract one for planning.
      rules: mesh axes of each logical axis.
    """

    mesh: Mesh | AbstractMesh
    rules: Rules

    @classmethod
    def single(cls) -> Layout:
        """Returns the layout of one device, the first of this process."""
        return cls(MeshShape().mesh(jax.local_devices()), ())

    @property
    def repeated(self) -> NamedSharding:
        """Sharding of a replicated array: whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_shards(self) -> int:
        """Number of shards of a batch's rows."""
        return math.prod(self.mesh.shape[axis] for axis in dict(self.rules).get("batch", ()))

    @property
    def row_divisor(self) -> int:
        """Divisor of the lengths of rows that devices share equally: each has two equal chunks."""
        parts = math.prod(self.mesh.shape[axis] for axis in dict(self.rules).get("length", ()))
        return 2 * parts if parts > 1 else 1

    @property
    def of_positions(self) -> Layout:
        """The layout in which positions claim their mesh axes before rows do.

        It differs if the same axes may cut both, as in an engine: see `Rules`.
        """
        ahead = tuple(rule for rule in self.rules if rule[0] == "length")
        rest = tuple(rule for rule in self.rules if rule[0] != "length")
        return dataclasses.replace(self, rules=ahead + rest)

    @property
    def tensor_shards(self) -> int:
        """Number of devices along `tensor`, groups included."""
        return self.mesh.shape["tensor"] * self.mesh.shape.get(GROUP, 1)

    @property
    def slot_shares(self) -> int:
        """Number of devices that divide the slots of a cache; see `rl_sync.models.slot_shares`."""
        cut = self.wanted(("layers", "batch", KV, SLOTS, "head_dim"))[3]
        return math.prod(self.mesh.shape[name] for name in cut)

    def sharding(self, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of an array of this shape.

        Args:
          axes: logical names of its first axes; None for an axis that is not sharded.
        """
        layout = self.for_array(axes, shape)
        cuts = [cut or None for cut in layout.cuts(axes, shape)]
        while cuts and cuts[-1] is None:
            cuts.pop()  # JAX compares shardings literally, and describes outputs in this way.
        return NamedSharding(layout.mesh, PartitionSpec(*cuts))

    def cuts(self, axes: Sequence[str | None], shape: Sequence[int]) -> list[tuple[str, ...]]:
        """Returns the mesh axes that shard each axis of an array of this shape.

        Args:
          axes: see `sharding`.
        """
        return [self._even(*cut) for cut in zip(self.wanted(axes), shape, strict=False)]

    def for_array(self, axes: Sequence[str | None], shape: Sequence[int]) -> Layout:
        """Returns the layout for an array's key and value heads, or itself if it has none."""
        sizes = [size for axis, size in zip(axes, shape, strict=False) if axis == KV]
        return self.grouped(*sizes) if sizes else self

    def grouped(self, kv_heads: int) -> Layout:
        """Returns the layout of a model with `kv_heads` key and value heads; see the module.

        It is this layout, unless devices share such heads; then it has the same devices in the same
        order. A program that computes, instead of only planning, must take all shardings from only
        one of the two layouts: JAX describes a program's outputs with the mesh of its inputs.
        """
        cut = [name for name in dict(self.rules).get(KV, ()) if self.mesh.shape[name] > 1]
        if len(cut) != 1:
            return self
        group, rest = divmod(self.mesh.shape[cut[0]], kv_heads)
        if rest or group == 1:
            return self
        (axis,) = cut
        rules: list[tuple[str, tuple[str, ...]]] = []
        for name, axes in self.rules:
            if name == KV:
                rules += [(KV, axes), (HEADS, (GROUP,))]
                rules += [(SLOTS, (GROUP,))] if not MOST_SHARES % group else []
            else:
                at = axes.index(axis) + 1 if axis in axes else len(axes)
                rules.append((name, (*axes[:at], *((GROUP,) if axis in axes else ()), *axes[at:])))
        return Layout(_split(self.mesh, axis, group), tuple(rules))

    def wanted(self, axes: Sequence[str | None]) -> list[tuple[str, ...]]:
        """Returns the mesh axes that the rules name for each axis, without those of one device."""
        found: dict[str | None, tuple[str, ...]] = {None: ()}
        claimed: set[str] = set()
        for axis, named in self.rules:
            if axis in axes and axis not in found:
                found[axis] = tuple(name for name in named if name not in claimed)
                claimed.update(named)
        return [
            tuple(name for name in found.get(axis, ()) if self.mesh.shape[name] > 1)
            for axis in axes
        ]

    def abstract(
        self, x: Array | jax.ShapeDtypeStruct, axes: Sequence[str | None]
    ) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of x, with its sharding."""
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding(axes, x.shape))

    def _even(self, cut: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Returns the longest prefix of the mesh axes that divides the size."""
        while size % math.prod(self.mesh.shape[name] for name in cut):
            cut = cut[:-1]
        return cut


def _split(mesh: Mesh | AbstractMesh, axis: str, group: int) -> Mesh | AbstractMesh:
    sizes: dict[str, int] = {}
    for name, size in mesh.shape.items():
        sizes |= {name: size // group, GROUP: group} if name == axis else {name: size}
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(tuple(sizes.values()), tuple(sizes))
    devices = mesh.devices.reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


_ONE_DEVICE = Layout(MeshShape().abstract(), ())
_layout = jax.make_user_context(_ONE_DEVICE)


def using(layout: Layout) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which `constrain` follows a layout.

    A function compiles once for each layout. All layouts of one device count as the same.
    """
    return _layout(layout if layout.mesh.size > 1 else _ONE_DEVICE)


def in_use() -> Layout:
    """Returns the layout that `constrain` follows."""
    return _layout.value


def laid_out() -> bool:
    """True if a layout of several devices is in use."""
    return in_use().mesh.size > 1


def cuts_positions() -> bool:
    """True if the current layout cuts the positions of rows."""
    return bool(in_use().wanted(("batch", "length"))[1])


def kv_group() -> int:
    """Returns the number of devices that share a key and value head in the current layout."""
    return in_use().mesh.shape.get(GROUP, 1)


def constrain(x: Array, *axes: str | None) -> Array:
    """Makes the compiler shard a value by the current layout; returns x itself on one device.

    Args:
      axes: logical names of its first axes; None for an axis that is not sharded.
    """
    if not laid_out():
        return x
    return jax.lax.with_sharding_constraint(x, in_use().sharding(axes, x.shape))
