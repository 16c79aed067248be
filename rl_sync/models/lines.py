"""Stores keys and values in lines, the layout for decode loops on GPUs and TPUs.

A line is the innermost axis of an array. The products of attention read lines in the order in which
they are stored, so a decode loop need not copy a cache to reorder it. A TPU stores 128 numbers side
by side, or pads to 128. So on a TPU a line holds several tokens if heads are narrow: the token at
position s is part s mod P of line s div P. Devices that share a kv head divide the lines
(`rl_sync.models.slot_shares`).

Letters in shapes: B rows, T positions, K kv heads, N query heads that share a kv head, H head dim,
L layers, C lines, P tokens of a line, W numbers of a line: P·H. If a row has several tokens, N is
the number of queries of all of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import TPU_LANES, platform
from rl_sync.models.sharding import SLOTS
from rl_sync.models.slot_shares import PartialAttention, dealt, evenly, shares

_MASKED = -1e30
_MOST_DIVIDED_PARTS = 2
"""Maximum number of tokens of a line if devices divide the lines, so that a page has enough."""


def in_lines() -> bool:
    """True if caches are in lines."""
    return platform() != "cpu"


def line_shape(config: ModelConfig, length: int) -> tuple[int, int]:
    """Returns the number of lines for `length` tokens, and the length of a line.

    The number of lines is a multiple of the devices that divide them.
    """
    parts = TPU_LANES // config.head_dim if platform() == "tpu" else 1
    parts = parts if parts * config.head_dim == TPU_LANES else 1
    if shares() > 1:
        parts = min(parts, _MOST_DIVIDED_PARTS)
    return evenly(-(-length // parts)), parts * config.head_dim


def lines_of(config: ModelConfig, x: Float[Array, "B T K H"]) -> Float[Array, "B K C W"]:
    """Arranges tokens in lines."""
    B, T, K, H = x.shape
    count, width = line_shape(config, T)
    x = jnp.pad(x, ((0, 0), (0, count * width // H - T), (0, 0), (0, 0)))
    x = x.reshape(B, count, width // H, K, H).transpose(0, 3, 1, 2, 4)
    return dealt(x.reshape(B, K, count, width), 2, ("batch", "kv", SLOTS, "head_dim"))


def write_token(
    held: Float[Array, "L B K C W"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> Float[Array, "L B K C W"]:
    """Writes one token a row into the line of its position, in one layer.

    Rows with a position below 0 are left unchanged.
    """
    B, K, H = new.shape
    parts = held.shape[-1] // H
    new = new.astype(held.dtype)
    line, part = jnp.divmod(positions, parts)
    line = jnp.where(positions < 0, held.shape[3], line)  # Out of bounds: not written.
    # Heads are indices too: otherwise a TPU would store all heads that one write covers side by
    # side, and copy the whole cache at the beginning and end of a loop.
    place = held.at[layer, jnp.arange(B)[:, None], jnp.arange(K), line[:, None]]
    if parts > 1:
        # Whole lines are written, with their other tokens unchanged.
        own = (jnp.arange(parts) == part[:, None])[:, None, :, None]
        old = place.get().reshape(B, K, parts, H)
        new = jnp.where(own, new[:, :, None], old).reshape(B, K, -1)
    return place.set(new)


def attend_to_lines(
    query: Float[Array, "B K N H"],
    keys: Float[Array, "B K C W"],
    values: Float[Array, "B K C W"],
    visible: Bool[Array, "B N CP"],
    *,
    scale: float,
) -> Float[Array, "B K N H"]:
    """Computes softmax(scale·q·kᵀ)·v under a mask, without extracting tokens from their lines.

    The queries for a part of a line are padded with zeros at its other parts, so their product with
    the whole line equals the product with the part. This costs no more if a line is as wide as the
    matrix unit.
    """
    scores = _scores(query, keys, visible, scale)
    weights = jax.nn.softmax(scores, axis=(3, 4)).astype(values.dtype)
    return _mixed(weights, values, query.shape[-1])


def attend_to_some_lines(
    query: Float[Array, "B K N H"],
    keys: Float[Array, "B K C W"],
    values: Float[Array, "B K C W"],
    visible: Bool[Array, "B N CP"],
    *,
    scale: float,
) -> PartialAttention:
    """Does the same for lines that have some of the positions of each row."""
    scores = _scores(query, keys, visible, scale)
    highest = scores.max(axis=(3, 4))
    weights = jnp.exp(scores - highest[..., None, None])
    mixed = _mixed(weights.astype(values.dtype), values, query.shape[-1], jnp.float32)
    return PartialAttention(highest, weights.sum(axis=(3, 4)), mixed)


def _scores(
    query: Float[Array, "B K N H"],
    keys: Float[Array, "B K C W"],
    visible: Bool[Array, "B N CP"],
    scale: float,
) -> Float[Array, "B K N P C"]:
    B, K, N, H = query.shape
    parts = keys.shape[-1] // H
    # Heads come before parts, since a layout may shard them.
    part = jnp.eye(parts, dtype=query.dtype)
    parted = (query[:, :, :, None, None] * part[:, :, None]).reshape(B, K, N * parts, -1)
    scores = jnp.einsum("BKQW,BKCW->BKQC", parted, keys, preferred_element_type=jnp.float32)
    seen = visible.reshape(B, N, -1, parts).swapaxes(2, 3)[:, None]
    return jnp.where(seen, scores.reshape(B, K, N, parts, -1) * scale, _MASKED)


def _mixed(
    weights: Float[Array, "B K N P C"],
    values: Float[Array, "B K C W"],
    head_dim: int,
    dtype: DTypeLike | None = None,
) -> Float[Array, "B K N H"]:
    B, K, N, parts, _ = weights.shape
    weights = weights.reshape(B, K, N * parts, -1)
    mixed = jnp.einsum("BKQC,BKCW->BKQW", weights, values, preferred_element_type=dtype)
    return jnp.einsum("BKNPPH->BKNH", mixed.reshape(B, K, N, parts, parts, head_dim))
