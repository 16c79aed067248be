"""Meshes, and where arrays lie on them: from logical axis names to shardings.

A program's devices form a mesh of three named axes: `data` repeats the parameters, `fsdp` shares
them out and gathers them layer by layer (ZeRO, arXiv:1910.02054), `tensor` shares out what is
computed inside a layer (Megatron-LM, arXiv:1909.08053). Arrays name their axes logically, and a
layout's rules say along which mesh axes each of those is cut.

An axis that its mesh axes do not divide evenly is not cut along them: the array is repeated there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

MESH_AXES = ("data", "fsdp", "tensor")

Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""For each logical axis the mesh axes that cut it; where several axes of an array claim one mesh
axis, the rule that stands first has it."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """How many devices a program has along each mesh axis.

    Raises:
      ValueError: a size below 1.
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
        """In the order of `MESH_AXES`."""
        return self.data, self.fsdp, self.tensor

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.sizes)

    def mesh(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh on the first of these devices.

        Raises:
          ValueError: there are too few.
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
        """The mesh without devices, to plan with."""
        return AbstractMesh(self.sizes, MESH_AXES)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and how arrays are cut along it.

    Attributes:
      mesh: with the axes `MESH_AXES`; an abstract one to plan with.
      rules: from logical axes to mesh axes.
    """

    mesh: Mesh | AbstractMesh
    rules: Rules

    @classmethod
    def single(cls) -> Layout:
        """The layout of one device, this process's first."""
        return cls(MeshShape().mesh(jax.local_devices()), ())

    @property
    def repeated(self) -> NamedSharding:
        """Whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_shards(self) -> int:
        """Into how many parts rows are cut."""
        return math.prod(self.mesh.shape[axis] for axis in dict(self.rules).get("batch", ()))

    def sharding(self, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Where an array of this shape lies.

        Args:
          axes: logical names of its first axes; None for one that is not cut.
        """
        cuts = zip(self.wanted(axes), shape, strict=False)
        return NamedSharding(self.mesh, PartitionSpec(*(self._even(*cut) or None for cut in cuts)))

    def wanted(self, axes: Sequence[str | None]) -> list[tuple[str, ...]]:
        """The mesh axes of more than one device that the rules cut each axis along."""
        found = nn.logical_to_mesh_axes(tuple(axes), self.rules) or ()
        cuts = [cut if isinstance(cut, tuple) else (cut,) if cut else () for cut in found]
        return [tuple(name for name in cut if self.mesh.shape[name] > 1) for cut in cuts]

    def like(self, x: Any, axes: Sequence[str | None]) -> jax.ShapeDtypeStruct:
        """The shape and dtype of x, in its place."""
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding(axes, x.shape))

    def _even(self, cut: tuple[str, ...], size: int) -> tuple[str, ...]:
        """As many of the mesh axes, from the first on, as divide the size."""
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


def laid_out() -> bool:
    """Whether a layout of several devices is in use."""
    return _layout.value.mesh.size > 1


def constrain(x: Array, *axes: str | None) -> Array:
    """Makes the compiler put a value where the layout in use says; x itself on one device.

    Args:
      axes: logical names of its first axes; None for one that is not cut.
    """
    if not laid_out():
        return x
    return jax.lax.with_sharding_constraint(x, _layout.value.sharding(axes, x.shape))
