"""Sums over sequences in rows: over a token's whole sequence, or from a token to the end.

If a row holds one sequence, `sequences` is None. If it holds several, one after the other,
`sequences` has the number of each token's sequence. Values that are equal for all tokens of a
sequence have the shape [B, 1] in the first case, and [B, T] in the second; both broadcast against
tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms.masking import Mask

Sequences = Int[Array, "B T"] | None
OfSequence = Float[Array, "B 1"] | Float[Array, "B T"]


def totals(values: Float[Array, "B T"], mask: Mask, sequences: Sequences = None) -> OfSequence:
    """Σ of the values over each token's own sequence, under the mask."""
    masked = jnp.where(mask, values, 0.0)
    if sequences is None:
        return masked.sum(axis=-1, keepdims=True)
    # Numbered within the row, so that rows are independent of each other.
    number = jnp.cumsum(_begins(sequences), axis=-1) - 1
    T = values.shape[1]

    def of_row(values: Float[Array, " T"], number: Int[Array, " T"]) -> Float[Array, " T"]:
        return jax.ops.segment_sum(values, number, num_segments=T)[number]

    return jax.vmap(of_row)(masked, number)


def lengths(mask: Mask, sequences: Sequences = None) -> OfSequence:
    """Number of tokens under the mask in each token's own sequence; 1 if there are none."""
    return jnp.maximum(totals(jnp.ones_like(mask, jnp.float32), mask, sequences), 1)


def means(values: Float[Array, "B T"], mask: Mask, sequences: Sequences = None) -> OfSequence:
    """Mean of the values over each token's own sequence, under the mask."""
    return totals(values, mask, sequences) / lengths(mask, sequences)


def trajectory_totals(
    values: Float[Array, "B T"], mask: Mask, sequences: Sequences, count: int
) -> Float[Array, " trajectories"]:
    """Σ of the values under the mask, for each trajectory of the batch.

    Args:
      count: number of trajectories in the batch.
    """
    masked = jnp.where(mask, values, 0.0)
    if sequences is None:
        return masked.sum(axis=-1)
    # Padding has the number -1 and adds only zeros.
    return jax.ops.segment_sum(masked.ravel(), sequences.ravel(), num_segments=count)


def to_tokens(
    of_trajectories: Float[Array, " trajectories"], sequences: Sequences = None
) -> OfSequence:
    """Copies the value of a trajectory to each of its tokens."""
    return of_trajectories[:, None] if sequences is None else of_trajectories[sequences]


def backward_sums(
    values: Float[Array, "B T"],
    decay: Float[Array, "B T"] | float,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """y_t = x_t + d_t · y_{t+1} within each sequence; y is 0 after its end."""
    decay = jnp.where(_ends(values, sequences), 0.0, decay).astype(values.dtype)

    def combine(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        (values_later, decay_later), (values, decay) = later, earlier
        return values + decay * values_later, decay * decay_later

    return jax.lax.associative_scan(combine, (values, decay), reverse=True, axis=1)[0]


def is_last(mask: Bool[Array, "B T"], sequences: Sequences = None) -> Bool[Array, "B T"]:
    """Marks the last token of each sequence under the mask."""
    remaining = backward_sums(mask.astype(jnp.float32), 1.0, sequences)
    return mask & (remaining == 1)


def next_values(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], sequences: Sequences = None
) -> Float[Array, "B T"]:
    """The value at the next token of the sequence under the mask; 0 behind the last one."""
    held = backward_sums(jnp.where(mask, values, 0.0), jnp.where(mask, 0.0, 1.0), sequences)
    ahead = jnp.pad(held[:, 1:], ((0, 0), (0, 1)))
    return jnp.where(_ends(values, sequences), 0.0, ahead)


def _begins(sequences: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    differs = sequences[:, 1:] != sequences[:, :-1]
    return jnp.pad(differs, ((0, 0), (1, 0)), constant_values=True)


def _ends(values: Float[Array, "B T"], sequences: Sequences) -> Bool[Array, "B T"]:
    if sequences is None:
        return jnp.zeros(values.shape, bool).at[:, -1].set(True)
    return jnp.pad(_begins(sequences)[:, 1:], ((0, 0), (0, 1)), constant_values=True)
