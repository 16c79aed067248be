"""Products of rows, sorted by expert, with the kernels of their experts.

XLA has an operation for this. On TPUs it is a kernel; for GPUs the compiler makes a product of
every row with every expert out of it. There Tokamax's kernel is used, where it is installed and
supports the shapes: it needs a Hopper or Blackwell GPU, and dtypes of 16 bits.

Letters in shapes: R rows, D and F widths, E experts.
"""

from __future__ import annotations

import functools
import importlib.util

import jax
from jaxtyping import Array, Float, Int

from rl_sync.models.platform import platform

_KERNEL_BITS = 16


def grouped(
    rows: Float[Array, "R D"], kernels: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "R F"]:
    """Multiplies each row by the kernel of its expert.

    Args:
      sizes: number of rows of each expert. What later rows give is not defined.
    """
    if platform() == "gpu" and rows.dtype.itemsize * 8 == _KERNEL_BITS and has_kernel():
        return _by_kernel(rows, kernels, sizes)
    return jax.lax.ragged_dot(rows, kernels, sizes)


@functools.cache
def has_kernel() -> bool:
    """Says whether the library of the kernel is installed."""
    return importlib.util.find_spec("tokamax") is not None


def _by_kernel(
    rows: Float[Array, "R D"], kernels: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "R F"]:
    import tokamax

    return tokamax.ragged_dot(
        rows,
        kernels,
        sizes,
        implementation=("mosaic_gpu", "xla"),
        bypass_device_check=True,
    )
