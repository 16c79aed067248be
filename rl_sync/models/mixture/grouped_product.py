"""Products of rows, sorted by expert, with the kernels of their experts.

XLA has an operation for this. On TPUs it is a kernel; for GPUs the compiler makes a product of
every row with every expert out of it. There Tokamax's kernel is used, where it is installed and
supports the shapes: it needs a Hopper or Blackwell GPU, dtypes of 16 bits, and widths on each
device that are multiples of 8, as the GPU copies lines of 16 bytes.

Letters in shapes: R rows, D and F widths, E experts.
"""

from __future__ import annotations

import functools
import importlib.util

import jax
from jaxtyping import Array, Float, Int

from rl_sync.models.platform import platform

_KERNEL_BYTES = 2
_KERNEL_LINE = 16


def grouped(
    rows: Float[Array, "R D"], kernels: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "R F"]:
    """Multiplies each row by the kernel of its expert.

    Args:
      sizes: number of rows of each expert. What later rows give is not defined.
    """
    if platform() == "gpu" and _fits(rows, kernels) and has_kernel():
        return _by_kernel(rows, kernels, sizes)
    return jax.lax.ragged_dot(rows, kernels, sizes)


def _fits(rows: Float[Array, "R D"], kernels: Float[Array, "E D F"]) -> bool:
    """Says whether the kernel takes arrays of this dtype and these widths, forward and backward."""
    size = rows.dtype.itemsize
    whole = all(width * size % _KERNEL_LINE == 0 for width in kernels.shape[1:])
    return size == _KERNEL_BYTES and whole


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
