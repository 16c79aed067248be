"""Sizes of a mesh of devices, and the rules by which its axes shard arrays.

`rl_sync.models.sharding` says what each axis shards.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax
    from jax.sharding import AbstractMesh, Mesh

MESH_AXES = ("data", "fsdp", "context", "experts", "tensor")

Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""Mesh axes that shard each logical axis. If several axes of an array claim one mesh axis, the
first rule wins, and the other axes of the later rule still count.
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
    experts: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        if min(self.sizes) < 1:
            raise ValueError(f"mesh sizes must be at least 1, not {self}.")

    def __str__(self) -> str:
        named = zip(MESH_AXES, self.sizes, strict=True)
        rare = ("context", "experts")
        return ", ".join(f"{axis}={size}" for axis, size in named if size > 1 or axis not in rare)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `MESH_AXES`."""
        return tuple(getattr(self, axis) for axis in MESH_AXES)

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(self.sizes)

    def mesh(self, devices: Sequence[jax.Device]) -> Mesh:
        """Makes the mesh on the first of these devices.

        TPUs of several slices, which a network connects, share the mesh equally, and `data` goes
        across slices: only gradients travel from slice to slice.

        Raises:
          ValueError: there are too few devices, or slices cannot share the mesh in this way.
        """
        import jax  # Late: settings have meshes, and are read without JAX.
        from jax.experimental import mesh_utils
        from jax.sharding import AxisType, Mesh

        if len(devices) < self.devices:
            raise ValueError(
                f"A mesh of {self} has {self.devices} devices, but this process has"
                f" {len(devices)}: make the mesh smaller, or give the process more devices"
                " (on CPU JAX_NUM_CPU_DEVICES, on GPU CUDA_VISIBLE_DEVICES)."
            )
        devices, kinds = devices[: self.devices], (AxisType.Auto,) * len(MESH_AXES)
        slices = collections.Counter(getattr(device, "slice_index", 0) for device in devices)
        if len(slices) == 1 or devices[0].platform != "tpu":
            try:
                return jax.make_mesh(self.sizes, MESH_AXES, axis_types=kinds, devices=devices)
            except NotImplementedError:  # No axes of the slice have these sizes: they are split.
                split = mesh_utils.create_device_mesh(
                    self.sizes, devices, allow_split_physical_axes=True
                )
                return Mesh(split, MESH_AXES, axis_types=kinds)
        inside, rest = divmod(self.data, len(slices))
        if rest or len(set(slices.values())) > 1:
            raise ValueError(
                f"A mesh of {self} is on {len(slices)} TPU slices, with"
                f" {', '.join(map(str, slices.values()))} devices of each: use as many of each"
                f" slice, and make data a multiple of {len(slices)}, since data goes across slices."
            )
        placed = mesh_utils.create_hybrid_device_mesh(
            (inside, *self.sizes[1:]), (len(slices), *[1] * len(self.sizes[1:])), devices
        )
        return Mesh(placed, MESH_AXES, axis_types=kinds)

    def abstract(self) -> AbstractMesh:
        """Returns the mesh without devices, for planning."""
        from jax.sharding import AbstractMesh

        return AbstractMesh(self.sizes, MESH_AXES)
