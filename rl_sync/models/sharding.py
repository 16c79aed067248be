"""Meshes and shardings: from logical axis names to the shards of each device.

A program's devices form a mesh with three named axes. Along `data`, parameters are replicated and
rows are split. Along `fsdp`, parameters are sharded, and gathered layer by layer (ZeRO,
arXiv:1910.02054). Along `tensor`, the computation inside a layer is sharded (Megatron-LM,
arXiv:1909.08053). Arrays have logical axis names; a layout's rules map each of them to mesh axes.

An axis whose size is not divisible by its mesh axes is not sharded along them: the array is
replicated there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
from jax.experimental.layout import Layout as DeviceLayout
from jax.experimental.layout import with_layout_constraint
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from rl_sync.models.platform import platform

MESH_AXES = ("data", "fsdp", "tensor")

T = TypeVar("T")

Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""The mesh axes that shard each logical axis. If several axes of an array claim one mesh axis, the
first rule wins.
"""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Number of devices of a program along each mesh axis.

    Raises:
      ValueError: a size is below 1.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(self.sizes) < 1:
            raise ValueError(f"mesh sizes must be at least 1, not {self}.")

    def __str__(self) -> str:
        return ", ".join(f"{axis}={getattr(self, axis)}" for axis in MESH_AXES)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes in the order of `MESH_AXES`."""
        return self.data, self.fsdp, self.tensor

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(self.sizes)

    def mesh(self, devices: Sequence[jax.Device]) -> Mesh:
        """Makes the mesh on the first of these devices.

        Raises:
          ValueError: there are too few devices.
        """
        if len(devices) < self.devices:
            raise ValueError(
                f"A mesh of {self} has {self.devices} devices, but this process has"
                f" {len(devices)}: make the mesh smaller, or give the process more devices"
                " (on CPU JAX_NUM_CPU_DEVICES, on GPU CUDA_VISIBLE_DEVICES)."
            )
        return jax.make_mesh(
            self.sizes,
            MESH_AXES,
            axis_types=(AxisType.Auto,) * len(MESH_AXES),
            devices=devices[: self.devices],
        )

    def abstract(self) -> AbstractMesh:
        """Returns the mesh without devices, to plan with."""
        return AbstractMesh(self.sizes, MESH_AXES)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and the rules for sharding arrays along it.

    Attributes:
      mesh: a mesh with the axes `MESH_AXES`; an abstract one to plan with.
      rules: the mesh axes of each logical axis.
    """

    mesh: Mesh | AbstractMesh
    rules: Rules

    @classmethod
    def single(cls) -> Layout:
        """The layout of one device, this process's first."""
        return cls(MeshShape().mesh(jax.local_devices()), ())

    @property
    def repeated(self) -> NamedSharding:
        """The sharding of a replicated array: whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_shards(self) -> int:
        """Number of parts that rows are split into."""
        return math.prod(self.mesh.shape[axis] for axis in dict(self.rules).get("batch", ()))

    def sharding(self, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of an array of this shape.

        Args:
          axes: logical names of its first axes; None for an axis that is not sharded.
        """
        cuts = (cut or None for cut in self.cuts(axes, shape))
        return NamedSharding(self.mesh, PartitionSpec(*cuts))

    def cuts(self, axes: Sequence[str | None], shape: Sequence[int]) -> list[tuple[str, ...]]:
        """Returns for each axis of an array of this shape the mesh axes that shard it.

        Args:
          axes: see `sharding`.
        """
        return [self._even(*cut) for cut in zip(self.wanted(axes), shape, strict=False)]

    def wanted(self, axes: Sequence[str | None]) -> list[tuple[str, ...]]:
        """Returns for each axis the mesh axes, of more than one device, that the rules shard it
        along.
        """
        found = nn.logical_to_mesh_axes(tuple(axes), self.rules) or ()
        cuts = [cut if isinstance(cut, tuple) else (cut,) if cut else () for cut in found]
        return [tuple(name for name in cut if self.mesh.shape[name] > 1) for cut in cuts]

    def like(self, x: Any, axes: Sequence[str | None]) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of x, with its sharding."""
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding(axes, x.shape))

    def _even(self, cut: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Returns as many of the mesh axes, from the first on, as divide the size."""
        while size % math.prod(self.mesh.shape[name] for name in cut):
            cut = cut[:-1]
        return cut


_ONE_DEVICE = Layout(MeshShape().abstract(), ())
_layout = jax.make_user_context(_ONE_DEVICE)


def using(layout: Layout) -> contextlib.AbstractContextManager[None]:
    """Within the context `constrain` follows a layout; functions compile once for each.

    All layouts of one device count as the same.
    """
    return _layout(layout if layout.mesh.size > 1 else _ONE_DEVICE)


def in_use() -> Layout:
    """Returns the layout that `constrain` follows."""
    return _layout.value


def laid_out() -> bool:
    """Says whether a layout of several devices is in use."""
    return in_use().mesh.size > 1


def constrain(x: Array, *axes: str | None) -> Array:
    """Makes the compiler put a value where the layout in use says; x itself on one device.

    Args:
      axes: logical names of its first axes; None for one that is not cut.
    """
    if not laid_out():
        return x
    return jax.lax.with_sharding_constraint(x, in_use().sharding(axes, x.shape))


def on_shards(function: Callable[..., Array], *axes: Sequence[str | None]) -> Callable[..., Array]:
    """Makes a function run on each device's shards of its arguments, without communication.

    Where the layout in use is one device, it is the function itself.

    Args:
      function: from arrays to one that is shaped and sharded like the first of them.
      axes: for each argument the logical names of its first axes. An argument may be None.
    """

    def run(*arrays: Array | None) -> Array:
        if not laid_out():
            return function(*arrays)
        layout = _layout.value
        pairs = zip(axes, arrays, strict=True)
        specs = tuple(
            PartitionSpec() if x is None else layout.sharding(names, x.shape).spec
            for names, x in pairs
        )
        mapped = jax.shard_map(
            function, mesh=layout.mesh, in_specs=specs, out_specs=specs[0], check_vma=False
        )
        return mapped(*arrays)

    return run


def as_stored(x: Array, *axes: str | None) -> Array:
    """Makes a TPU's compiler read a value in the order of its axes, the last one innermost.

    Arguments of programs are stored in this order. x itself on other platforms.

    Args:
      axes: see `constrain`.
    """
    if platform() != "tpu":
        return x

    def pinned(x: Array) -> Array:
        return with_layout_constraint(x, DeviceLayout(major_to_minor=tuple(range(x.ndim))))

    if not laid_out():
        return pinned(x)
    # The compiler cannot divide the constraint: each device has it on its own shard.
    sharding = _layout.value.sharding(axes, x.shape)
    cut = {"in_specs": sharding.spec, "out_specs": sharding.spec}
    return jax.shard_map(pinned, mesh=sharding.mesh, **cut, check_vma=False)(x)


def by_rows(
    function: Callable[..., T], x: Array, axes: tuple[str | None, str | None], *others: Any
) -> T:
    """Computes a function of each row of a matrix whose columns the layout in use may cut.

    Devices that hold parts of the same rows exchange them, so that each has an equal share of the
    rows, whole: that is less to send and to hold than whole values of all rows. If the rows do not
    divide evenly, each device does get all of them.

    Args:
      function: maps rows of x and of `others` to arrays with the same first axis.
      axes: logical names of rows and columns.
      others: trees of arrays that are cut by rows only.
    """
    if not laid_out():
        return function(x, *others)
    layout = _layout.value
    rows, columns = (*layout.sharding(axes, x.shape).spec, None, None)[:2]
    cut = (columns,) if isinstance(columns, str) else tuple(columns or ())
    parts = math.prod(layout.mesh.shape[name] for name in cut)

    def share(x: Array, others: Any) -> Any:
        if not cut:
            return function(x, *others)
        if x.shape[0] % parts:
            return function(jax.lax.all_gather(x, cut, axis=1, tiled=True), *others)
        x = jax.lax.all_to_all(x, cut, split_axis=0, concat_axis=1, tiled=True)
        first = jax.lax.axis_index(cut) * x.shape[0]
        own = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=x.shape[0]
        )
        found = function(x, *jax.tree.map(own, others))
        return jax.tree.map(lambda x: jax.lax.all_gather(x, cut, tiled=True), found)

    by = PartitionSpec(rows)
    return jax.shard_map(
        share,
        mesh=layout.mesh,
        in_specs=(PartitionSpec(rows, columns), by),
        out_specs=by,
        check_vma=False,
    )(x, others)
