"""Operations on rows whose results do not depend on how many rows there are, to the bit.

XLA computes small products and small sums on CPUs by other kernels than large ones, and fuses sums
with what is around them; each way adds in another order. An explorer decodes a few rows of one
token, and the trainer scores many long rows, so they round differently. Here each product has at
least `LEAST_ROWS` rows, and each sum at least `LEAST_NUMBERS` numbers; fewer are padded, and the
compiler must leave the operation alone. From these sizes on, a row's result has the same bits
whatever the other rows are (`python benchmarks/batch_invariance.py kernels` measures it;
"batch-invariant" as in Defeating Nondeterminism in LLM Inference, Thinking Machines 2025).

Letters in shapes: B rows, T positions, K key and value heads, R queries, C keys, H head dim, V
vocab.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.models.sharding import in_use

LEAST_ROWS = 64
"""Fewest rows of a product, and fewest columns of one by heads."""
FEW_OUTPUTS = 8
"""Most columns of a product that needs twice as many rows."""
LEAST_NUMBERS = 8192
"""Fewest numbers of an array that is summed."""
KEYS = 64
"""Number of keys, from the beginning of a sequence on, whose values are summed at once."""


def sharing(x: Float[Array, "B T ..."]) -> int:
    """Returns the number of devices that share an array's rows and positions."""
    layout = in_use()
    cuts = layout.cuts(("batch", "length"), x.shape[:2])
    return math.prod(layout.mesh.shape[axis] for cut in cuts for axis in cut)


def least_rows(outputs: int) -> int:
    """Returns the fewest rows of a product with a number of columns."""
    return LEAST_ROWS * (2 if outputs <= FEW_OUTPUTS else 1)


def by_many_rows(
    function: Callable[[Float[Array, "B T ..."]], Float[Array, "B T ..."]],
    x: Float[Array, "B T ..."],
    least: int,
    devices: int,
) -> Float[Array, "B T ..."]:
    """Applies a function of each position to an array with enough of them; padding is cut off.

    Args:
      least: fewest positions of all rows on each device.
      devices: number of devices that share them.
    """
    rows, width = x.shape[:2]
    times = math.ceil(least * devices / (rows * width))
    padded = jnp.pad(x, ((0, 0), (0, (times - 1) * width), *((0, 0),) * (x.ndim - 2)))
    return jax.lax.optimization_barrier(function(jax.lax.optimization_barrier(padded)))[:, :width]


def total(x: Float[Array, "B T ... N"], devices: int = 1) -> Float[Array, "B T ..."]:
    """Sums over the last axis.

    Args:
      devices: number of devices that share the first two axes.
    """
    least = math.ceil(LEAST_NUMBERS / math.prod(x.shape[2:]))
    return by_many_rows(lambda wide: wide.sum(axis=-1), x, least, devices)


def mixed(
    weights: Float[Array, "B K R C"], values: Float[Array, "B K C H"]
) -> Float[Array, "B K R H"]:
    """Sums values by weights. There may be a single query, so there are many columns.

    Columns behind a multiple of `LEAST_ROWS` would be summed in another order.
    """
    width = values.shape[-1]
    padding = ((0, 0),) * 3 + ((0, -width % LEAST_ROWS),)
    given = jax.lax.optimization_barrier((weights, jnp.pad(values, padding)))
    return jax.lax.optimization_barrier(jnp.einsum("BKRC,BKCH->BKRH", *given))[..., :width]


def chosen_logprobs(
    scaled: Float[Array, "B T V"], chosen: Float[Array, "B T"], devices: int = 1
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log-probabilities of tokens, and log Σ exp(s), from logits s as they are sampled.

    Args:
      chosen: logit of the token of each position.
      devices: number of devices that share the first two axes.
    """
    scaled = jax.lax.optimization_barrier(scaled)
    highest = scaled.max(axis=-1)
    log_sum = jnp.log(total(jnp.exp(scaled - highest[..., None]), devices))
    return chosen - highest - log_sum, highest + log_sum
