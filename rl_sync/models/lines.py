"""Keys and values in lines, as decode loops of GPUs and TPUs read and write them.

A line is the innermost axis of an array. Products of attention take lines in the order in which
they are stored, so a loop that decodes copies no cache to change its order. A TPU stores 128
numbers side by side, or pads to as many. So a line there holds several tokens of narrow heads: the
token at position s is part s mod P of line s div P.

Letters in shapes: B rows, T positions, K kv heads, N query heads that share a kv head, H head dim,
L layers, C lines, P tokens of a line, W numbers of a line: P·H.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import TPU_LANES, platform

_MASKED = -1e30


def in_lines() -> bool:
    """Says whether caches are in lines."""
    return platform() != "cpu"


def line_shape(config: ModelConfig, length: int) -> tuple[int, int]:
    """Returns the number of lines for so many tokens, and the numbers of each."""
    parts = TPU_LANES // config.head_dim if platform() == "tpu" else 1
    parts = parts if parts * config.head_dim == TPU_LANES else 1
    return -(-length // parts), parts * config.head_dim


def lines_of(config: ModelConfig, x: Float[Array, "B T K H"]) -> Float[Array, "B K C W"]:
    """Puts tokens into lines."""
    B, T, K, H = x.shape
    count, width = line_shape(config, T)
    x = jnp.pad(x, ((0, 0), (0, count * width // H - T), (0, 0), (0, 0)))
    x = x.reshape(B, count, width // H, K, H).transpose(0, 3, 1, 2, 4)
    return x.reshape(B, K, count, width)


def write_token(
    held: Float[Array, "L B K C W"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> Float[Array, "L B K C W"]:
    """Puts one token a row into the line of its position, in one layer.

    Rows with a position below 0 stay as they are.
    """
    B, K, H = new.shape
    parts = held.shape[-1] // H
    new = new.astype(held.dtype)
    line, part = jnp.divmod(positions, parts)
    line = jnp.where(positions < 0, held.shape[3], line)  # Out of bounds: nothing is set.
    # Heads are indices too: a TPU would store what one of them writes side by side, and so copy the
    # whole cache where a loop begins and ends.
    place = held.at[layer, jnp.arange(B)[:, None], jnp.arange(K), line[:, None]]
    if parts > 1:
        # Whole lines are written, with their other tokens as they were.
        own = (jnp.arange(parts) == part[:, None])[:, None, :, None]
        old = place.get().reshape(B, K, parts, H)
        new = jnp.where(own, new[:, :, None], old).reshape(B, K, -1)
    return place.set(new)


def attend_to_lines(
    query: Float[Array, "B K N H"],
    keys: Float[Array, "B K C W"],
    values: Float[Array, "B K C W"],
    visible: Bool[Array, "B CP"],
    *,
    scale: float,
) -> Float[Array, "B K N H"]:
    """Computes softmax(scale·q·kᵀ)·v under a mask, and takes no token out of its line.

    The queries for each part of a line have zeros at its other parts. So the product with whole
    lines is that with the part. It costs the same where the line is as wide as the unit that
    multiplies.
    """
    B, K, N, H = query.shape
    parts = keys.shape[-1] // H
    # Heads come before parts, since a layout may cut them.
    part = jnp.eye(parts, dtype=query.dtype)
    parted = (query[:, :, :, None, None] * part[:, :, None]).reshape(B, K, N * parts, -1)
    scores = jnp.einsum("BKQW,BKCW->BKQC", parted, keys, preferred_element_type=jnp.float32)
    seen = visible.reshape(B, -1, parts).transpose(0, 2, 1)[:, None, None]
    scores = jnp.where(seen, scores.reshape(B, K, N, parts, -1) * scale, _MASKED)
    weights = jax.nn.softmax(scores, axis=(3, 4)).astype(values.dtype)
    weights = weights.reshape(B, K, N * parts, -1)
    mixed = jnp.einsum("BKQC,BKCW->BKQW", weights, values)
    return jnp.einsum("BKNPPH->BKNH", mixed.reshape(B, K, N, parts, parts, H))
