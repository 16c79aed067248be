"""Computes a mixture of experts on one device's tokens, or on those of several devices together.

Letters in shapes: Z tokens, C experts of a token, D embed, F mlp, E experts, R rows, such as the
choices of tokens (Z·C), X devices, S slots for rows that arrive.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from rl_sync.models.config import Experts, ModelConfig
from rl_sync.models.layers import ACTIVATIONS
from rl_sync.models.platform import platform
from rl_sync.token_records import unrecorded_in

_EXCHANGE_BYTES = 256 << 20
_KERNEL_BYTES = 2
_KERNEL_LINE = 16


class ExpertKernels(NamedTuple):
    """Kernels of experts, all or some, in the dtype of the computation."""

    gate_up: Float[Array, "E D 2 F"]
    down: Float[Array, "E F D"]


class Routes(NamedTuple):
    """The experts that tokens go to.

    Attributes:
      experts: number of each expert.
      weights: weight of its output.
    """

    experts: Int[Array, "Z C"]
    weights: Float[Array, "Z C"]


def routes_of(
    settings: Experts,
    tokens: Float[Array, "Z D"],
    router: Float[Array, "D E"],
    recorded: UInt[Array, "Z C"] | None = None,
) -> Routes:
    """Chooses each token's likeliest experts, or replays the recorded ones.

    The scores and the softmax are in float32, whatever the dtype of the tokens: the experts of a
    token whose scores are close would otherwise change with the rounding.

    Weights are those of the present scores, so that the router learns from replayed routes, too
    (rollout routing replay, arXiv:2510.11370, equation 7).

    Args:
      recorded: experts that tokens went to before; see `rl_sync.token_records`.
    """
    kernel = router.astype(tokens.dtype).astype(jnp.float32)  # Rounded as an explorer has it.
    scores = jnp.dot(tokens.astype(jnp.float32), kernel, precision="highest")
    shares = jax.nn.softmax(scores, axis=-1)
    weights, experts = jax.lax.top_k(shares, settings.per_token)
    if recorded is not None:
        is_there = recorded != unrecorded_in(recorded.dtype)
        experts = jnp.where(is_there, recorded.astype(experts.dtype), experts)
        weights = jnp.take_along_axis(shares, experts, axis=-1)
    if settings.normalize:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routes(experts, weights)


def mixed(
    config: ModelConfig,
    tokens: Float[Array, "Z D"],
    routes: Routes,
    kernels: ExpertKernels,
    first: Int[Array, ""] | int = 0,
) -> Float[Array, "Z D"]:
    """Sums the outputs of the experts that are here, weighted.

    Choices are sorted by expert, so that each expert multiplies its own once.

    Args:
      first: number of the first expert of `kernels`; others add nothing.
    """
    own = routes.experts.reshape(-1) - first
    count = kernels.down.shape[0]
    own = jnp.where((own < 0) | (own >= count), count, own)
    order = jnp.argsort(own, stable=True)
    sizes = jnp.bincount(own, length=count).astype(jnp.int32)
    out = _through(config, tokens[order // routes.experts.shape[1]], kernels, sizes)
    return _summed(out, order, routes)


def mixed_between(
    config: ModelConfig,
    tokens: Float[Array, "Z D"],
    routes: Routes,
    kernels: ExpertKernels,
    axes: tuple[str, ...],
) -> Float[Array, "Z D"]:
    """Does the same where each device of some mesh axes has some of the experts.

    Each choice goes to the device of its expert, and its output comes back. In the worst case all
    go to one device, and there are slots for that: nothing is dropped. So that the slots do not
    need more than a bounded memory, tokens take turns, some of each device at a time; with an
    uneven routing a turn takes as long as the device that has most to do.
    """
    devices = math.prod(jax.lax.axis_size(name) for name in axes)
    Z, D = tokens.shape
    choices = routes.experts.shape[1]
    turns = -(-devices * Z * choices * D * tokens.dtype.itemsize // _EXCHANGE_BYTES)
    each = -(-Z // turns)

    def turn(some: tuple[Array, Routes]) -> Array:
        return _one_turn(config, *some, kernels, axes, devices)

    if turns == 1:
        return turn((tokens, routes))

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, turns * each - Z), *[(0, 0)] * (x.ndim - 1)])
        return x.reshape(turns, each, *x.shape[1:])

    out = jax.lax.map(jax.checkpoint(turn), jax.tree.map(cut, (tokens, routes)))
    return out.reshape(turns * each, D)[:Z]


def _one_turn(
    config: ModelConfig,
    tokens: Float[Array, "Z D"],
    routes: Routes,
    kernels: ExpertKernels,
    axes: tuple[str, ...],
    devices: int,
) -> Float[Array, "Z D"]:
    count = kernels.down.shape[0]
    chosen = routes.experts.reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    here = jax.lax.axis_index(axes)
    counts = jnp.bincount(chosen, length=devices * count).astype(jnp.int32)
    everywhere = jax.lax.all_gather(counts, axes).reshape(devices, devices, count)
    sizes, slots = everywhere.sum(axis=2), devices * chosen.size
    arrived = exchanged(tokens[order // routes.experts.shape[1]], sizes, axes, slots)
    # Rows arrive by device, and by expert within.
    by_expert = everywhere[:, here]
    ends = jnp.cumsum(by_expert.reshape(-1))
    expert = jnp.searchsorted(ends, jnp.arange(slots), side="right")
    expert = jnp.where(expert < devices * count, expert % count, count)
    again = jnp.argsort(expert, stable=True)
    out = _through(config, arrived[again], kernels, by_expert.sum(axis=0))
    out = jnp.zeros_like(out).at[again].set(out, unique_indices=True)
    returned = exchanged(out, sizes.T, axes, chosen.size)
    return _summed(returned, order, routes)


def _through(
    config: ModelConfig,
    rows: Float[Array, "R D"],
    kernels: ExpertKernels,
    sizes: Int[Array, " E"],
) -> Float[Array, "R D"]:
    """Sends rows, sorted by expert, through their experts; rows after the last give 0."""
    E, D, _, F = kernels.gate_up.shape
    # What a product, or its gradient, leaves in rows of no expert is not defined.
    has_expert = (jnp.arange(len(rows)) < sizes.sum())[:, None]
    rows = jnp.where(has_expert, rows, 0)
    both = grouped(rows, kernels.gate_up.reshape(E, D, 2 * F), sizes)
    both = both.reshape(-1, 2, F)
    hidden = ACTIVATIONS[config.activation](both[:, 0]) * both[:, 1]
    return jnp.where(has_expert, grouped(hidden, kernels.down, sizes), 0)


def _summed(
    out: Float[Array, "R D"], order: Int[Array, " R"], routes: Routes
) -> Float[Array, "Z D"]:
    """Sums each token's outputs, which are in the order of the choices."""
    by_choice = jnp.zeros_like(out).at[order].set(out, unique_indices=True)
    by_choice = by_choice.reshape(*routes.weights.shape, -1)
    return jnp.einsum("ZCD,ZC->ZD", by_choice, routes.weights.astype(out.dtype))


def exchanged(
    rows: Float[Array, "R D"], sizes: Int[Array, "X X"], axes: tuple[str, ...], slots: int
) -> Float[Array, "S D"]:
    """Sends rows to other devices; returns those that arrive, ordered by device, then zeros.

    It runs inside `jax.shard_map`. XLA has an operation for this on TPUs and GPUs. On CPUs every
    device gets all rows, and keeps its own.

    Args:
      rows: rows of this device, ordered by the device that they go to.
      sizes: number of rows that each device (first axis) sends to each other.
      axes: mesh axes of the devices.
      slots: number of rows that the result has, at least as many as arrive.
    """
    here = jax.lax.axis_index(axes)
    if platform() == "cpu":
        return _exchanged_by_gather(rows, sizes, axes, slots)
    before = jnp.cumsum(sizes, axis=1) - sizes  # Where a device's rows for each other begin.
    after = jnp.cumsum(sizes, axis=0) - sizes  # Where they begin at the other.
    return jax.lax.ragged_all_to_all(
        rows,
        jnp.zeros((slots, rows.shape[1]), rows.dtype),
        before[here],
        sizes[here],
        after[here],
        sizes[:, here],
        axis_name=axes,
    )


def _exchanged_by_gather(
    rows: Float[Array, "R D"], sizes: Int[Array, "X X"], axes: tuple[str, ...], slots: int
) -> Float[Array, "S D"]:
    """Does the same by a gather of all rows."""
    everything = jax.lax.all_gather(rows, axes)
    here = jax.lax.axis_index(axes)
    arriving = sizes[:, here]
    ends = jnp.cumsum(arriving)
    slot = jnp.arange(slots)
    source = jnp.minimum(jnp.searchsorted(ends, slot, side="right"), len(arriving) - 1)
    before = jnp.cumsum(sizes, axis=1) - sizes
    row = before[source, here] + slot - (ends - arriving)[source]
    filled = slot < ends[-1]
    found = everything[source, jnp.where(filled, row, 0)]
    return jnp.where(filled[:, None], found, 0)


def grouped(
    rows: Float[Array, "R D"], kernels: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "R F"]:
    """Multiplies each row by the kernel of its expert; rows are sorted by expert.

    XLA has an operation for this. On TPUs it is a kernel; for GPUs the compiler makes a product of
    every row with every expert out of it. There Tokamax's kernel is used, where it is installed and
    supports the shapes: it needs a Hopper or Blackwell GPU, dtypes of 16 bits, and widths on each
    device that are multiples of 8, as the GPU copies lines of 16 bytes.

    Args:
      sizes: number of rows of each expert. What later rows give is not defined.
    """
    if platform() == "gpu" and _fits_kernel(rows, kernels) and has_kernel():
        return _grouped_by_kernel(rows, kernels, sizes)
    return jax.lax.ragged_dot(rows, kernels, sizes)


def _fits_kernel(rows: Float[Array, "R D"], kernels: Float[Array, "E D F"]) -> bool:
    """Says whether the kernel takes arrays of this dtype and these widths, forward and backward."""
    size = rows.dtype.itemsize
    whole = all(width * size % _KERNEL_LINE == 0 for width in kernels.shape[1:])
    return size == _KERNEL_BYTES and whole


@functools.cache
def has_kernel() -> bool:
    """Says whether the library of the kernel is installed."""
    return importlib.util.find_spec("tokamax") is not None


def _grouped_by_kernel(
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
