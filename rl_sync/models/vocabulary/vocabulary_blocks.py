"""Computes log-probabilities by blocks of the vocabulary, for a matrix on several devices.

A block of the matrix is gathered, multiplied by the hidden states of all of a device's tokens, and
dropped: neither the whole matrix nor all logits are ever in memory. The softmax is updated for each
block (Online normalizer calculation for softmax, arXiv:1805.02867, algorithm 3). The backward pass
recomputes the logits of each block. The gradient of a block is summed in float32; once it is
complete, it is sent to the devices that have its shards. So each pass gathers the matrix once, and
the backward pass reduces its gradient once.

Along the mesh axes that shard the vocabulary but not the rows, logits stay sharded, and only a few
values for each token are exchanged.

Letters in shapes: N tokens of a device, V vocab, D embed, n blocks, v tokens of the vocabulary in a
block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rl_sync.models.platform import platform
from rl_sync.models.vocabulary.token_sets import (
    EVERYTHING,
    NOTHING,
    LogprobSettings,
    TokenSets,
    changed_logits,
    holds,
)
from rl_sync.models.vocabulary.vocabulary_cuts import Cuts, gathered, gathered_vocab, reduced

_LANES = 128  # A block's size is a multiple of this, as matrix units prefer.


State = TypeVar("State")
Out = TypeVar("Out")
Cut = TypeVar("Cut")
"""Shards of blocks of one matrix or several, as `Blocks`."""


class Blocks(NamedTuple):
    """The shards of blocks on a device.

    Attributes:
      kernel: shard of the transposed matrix, so exchanges move whole rows.
      ids: vocabulary tokens; −1 for padding.
    """

    kernel: Float[Array, "n D v"]
    ids: Int[Array, "n v"]


class BlockPlan(NamedTuple):
    """Plan of a device's computation.

    Attributes:
      cuts: sharding of the matrix and the rows.
      vocab: number of rows of this device's shard of the matrix.
      size: number of vocabulary tokens in this device's shard of a block.
      settings: settings of the log-probabilities.
    """

    cuts: Cuts
    vocab: int
    size: int
    settings: LogprobSettings

    @property
    def number(self) -> int:
        """Number of blocks."""
        return -(-self.vocab // self.size)

    @property
    def is_padded(self) -> bool:
        """True if the last block is longer than the rest of the vocabulary."""
        return self.number * self.size > self.vocab

    def blocks(self, kernel: Float[Array, "V D"], dtype: DTypeLike) -> Blocks:
        """Cuts a device's shard of the matrix into shards of blocks."""
        more = self.number * self.size - self.vocab
        cut = jnp.pad(kernel.astype(dtype), ((0, more), (0, 0)))
        here = jnp.arange(self.number * self.size, dtype=jnp.int32)
        first = jax.lax.axis_index(self.cuts.vocab) * self.vocab if self.cuts.vocab else 0
        ids = jnp.where(here < self.vocab, first + here, -1)
        shape = (self.number, self.size)
        return Blocks(cut.reshape(*shape, -1).swapaxes(1, 2), ids.reshape(shape))

    def gathered(self, block: Blocks) -> Blocks:
        """Gathers one block."""
        return Blocks(gathered(self.cuts, block.kernel), gathered_vocab(self.cuts, block.ids))

    def logits(self, hidden: Float[Array, "N D"], block: Blocks) -> Float[Array, "N v"]:
        """Computes the logits of a block in float32."""
        return jnp.einsum("ND,Dv->Nv", hidden, block.kernel, preferred_element_type=jnp.float32)

    def scaled(
        self, logits: Float[Array, "N v"], block: Blocks, sets: TokenSets
    ) -> Float[Array, "N v"]:
        """Changes the logits of a block as explorers do; see `changed_logits`."""
        scaled = changed_logits(logits, sets, block.ids, self.settings)
        return jnp.where(block.ids >= 0, scaled, NOTHING) if self.is_padded else scaled

    def by_logits(
        self,
        by_scaled: Float[Array, "N v"],
        logits: Float[Array, "N v"],
        block: Blocks,
        sets: TokenSets,
    ) -> Float[Array, "N v"]:
        """Turns the gradient with respect to changed logits into that with respect to logits."""
        by_scaled = by_scaled / self.settings.temperature
        if sets.seen is None:
            return by_scaled
        penalty = self.settings.repetition_penalty
        slope = jnp.where(logits > 0, 1 / penalty, penalty)
        return jnp.where(holds(sets.seen, block.ids), by_scaled * slope, by_scaled)

    def chosen(
        self, scaled: Float[Array, "N v"], ids: Int[Array, " v"], wanted: Int[Array, " N"]
    ) -> Float[Array, " N"]:
        """Returns the scaled logit of each token's target; 0 if it is in another block."""
        if platform() == "tpu":  # By comparison and sum: TPUs read single values slowly.
            return jnp.where(ids == wanted[:, None], scaled, 0.0).sum(axis=-1)
        found = jnp.zeros(wanted.shape)
        for first in range(0, ids.size, self.size):  # The ids of one device are consecutive.
            at = first + jnp.clip(wanted - ids[first], 0, self.size - 1)
            there = jnp.take_along_axis(scaled, at[:, None], axis=-1)[:, 0]
            found = found + jnp.where(ids[at] == wanted, there, 0.0)
        return found

    def scan(
        self, body: Callable[[State, Blocks], tuple[State, Out]], state: State, blocks: Blocks
    ) -> tuple[State, Out]:
        """Scans over blocks; the next block is gathered while the current one is computed."""
        return scan_gathered(self.gathered, body, state, blocks)


def scan_gathered(
    gather: Callable[[Cut], Cut],
    body: Callable[[State, Cut], tuple[State, Out]],
    state: State,
    blocks: Cut,
) -> tuple[State, Out]:
    """Scans over blocks; the next ones are gathered while the current ones are computed.

    Args:
      blocks: a pytree of arrays with a leading axis of blocks.
    """

    def step(carry: tuple[State, Cut], following: Cut) -> tuple[tuple[State, Cut], Out]:
        state, current = carry
        fetched = gather(following)
        state, out = body(state, current)
        return (state, fetched), out

    first = jax.tree.map(lambda x: x[0], blocks)
    rest = jax.tree.map(lambda x: x[1:], blocks)
    (state, last), outs = jax.lax.scan(step, (state, gather(first)), rest)
    state, out = body(state, last)
    return state, jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), outs, out)


class Softmax(NamedTuple):
    """Values of each token over the vocabulary so far, for scaled logits s.

    Attributes:
      highest: max s.
      total: Σ exp(s − highest).
      weighted: Σ exp(s − highest) · s.
      chosen: s of the token's target; 0 before its block.
    """

    highest: Float[Array, " N"]
    total: Float[Array, " N"]
    weighted: Float[Array, " N"]
    chosen: Float[Array, " N"]


def block_logprobs(
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log-probabilities of targets, and entropies, under a layout of several devices.

    Args:
      kernel: the output projection.
      hidden: hidden state of the token before each target.
      settings: its `logits_bytes` limit a block's logits, and the block's gradient; they are
        exceeded if 128 vocabulary tokens need more.
      sets: see `next_logprobs`.
    """
    plan = plan_of(kernel.shape, targets.shape, settings)
    return _logprobs(plan, kernel, hidden, targets, sets)


def plan_of(matrix: tuple[int, ...], rows: tuple[int, ...], settings: LogprobSettings) -> BlockPlan:
    """Plans the blocks of a matrix [V, D] for rows of targets [B, T], under the current layout.

    Args:
      settings: see `block_logprobs`.
    """
    cuts = Cuts.of(matrix, rows)
    vocab = matrix[0] // cuts.size(cuts.vocab)
    tokens = math.prod(rows) // cuts.size(cuts.tokens)
    most = settings.logits_bytes // (4 * max(tokens, matrix[1]) * cuts.size(cuts.shared))
    return BlockPlan(cuts, vocab, _even_size(vocab, most), settings)


def _even_size(vocab: int, most: int) -> int:
    """Returns the block size, of at most `most` tokens or 128, that makes blocks nearly equal."""
    if vocab <= max(_LANES, most):
        return vocab
    count = -(-vocab // max(_LANES, most // _LANES * _LANES))
    return -(-vocab // (count * _LANES)) * _LANES


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(
    plan: BlockPlan,
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    sets: TokenSets,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    logprobs, entropy, _ = _compute(plan, kernel, hidden, targets, sets)
    return logprobs, entropy


def _compute(plan: BlockPlan, *given: Array | TokenSets) -> tuple[Array, Array, Array]:
    rows = plan.cuts.row_spec
    return plan.cuts.mapped(
        functools.partial(_on_each, plan),
        *given,
        inputs=(plan.cuts.matrix_spec, rows, rows, rows),
        outputs=(rows, rows, rows),
    )


def _forward(
    plan: BlockPlan, *given: Array | TokenSets
) -> tuple[tuple[Array, Array], tuple[Array | TokenSets, ...]]:
    logprobs, entropy, log_total = _compute(plan, *given)
    return (logprobs, entropy), (*given, entropy, log_total)


def _backward(
    plan: BlockPlan, kept: tuple[Array | TokenSets, ...], gradients: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    cuts, rows = plan.cuts, plan.cuts.row_spec
    by_kernel, by_hidden = cuts.mapped(
        functools.partial(_gradients_on_each, plan),
        *kept,
        *gradients,
        inputs=(cuts.matrix_spec, *(rows,) * 7),
        outputs=(cuts.matrix_spec, rows),
    )
    return by_kernel, by_hidden, None, None


_logprobs.defvjp(_forward, _backward)


def _on_each(
    plan: BlockPlan,
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    sets: TokenSets,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log-probability, entropy and log Σ exp(s) of a device's own rows."""
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    of_flat = flat_sets(sets)

    def add(seen: Softmax, block: Blocks) -> tuple[Softmax, None]:
        scaled = plan.scaled(plan.logits(flat, block), block, of_flat)
        highest = jnp.maximum(seen.highest, scaled.max(axis=-1))
        shrunk, weights = jnp.exp(seen.highest - highest), jnp.exp(scaled - highest[:, None])
        after = Softmax(
            highest,
            seen.total * shrunk + weights.sum(axis=-1),
            seen.weighted * shrunk + (weights * scaled).sum(axis=-1),
            seen.chosen + plan.chosen(scaled, block.ids, wanted),
        )
        return after, None

    nothing = jnp.zeros(wanted.shape)
    start = Softmax(nothing - jnp.inf, nothing, nothing, nothing)
    seen, _ = plan.scan(add, start, plan.blocks(kernel, hidden.dtype))
    highest, total, weighted, chosen = _over_parts(seen, plan.cuts.apart)
    log_total = highest + jnp.log(total)
    # H = log Σ exp(s) − Σ p·s
    found = chosen - log_total, log_total - weighted / total, log_total
    logprobs, entropy, log_total = (values.reshape(targets.shape) for values in found)
    return logprobs, entropy, log_total


def flat_sets(sets: TokenSets) -> TokenSets:
    """Concatenates the sets of all rows."""
    return jax.tree.map(lambda words: words.reshape(-1, words.shape[-1]), sets)


def _over_parts(seen: Softmax, axes: tuple[str, ...]) -> Softmax:
    """Combines the values of devices that have different parts of the vocabulary."""
    if not axes:
        return seen
    highest = jax.lax.pmax(seen.highest, axes)
    shrunk = jnp.exp(seen.highest - highest)
    parts = jnp.stack([seen.total * shrunk, seen.weighted * shrunk, seen.chosen])
    return Softmax(highest, *jax.lax.psum(parts, axes))


def _gradients_on_each(
    plan: BlockPlan,
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    sets: TokenSets,
    *of_tokens: Array,
) -> tuple[Float[Array, "V D"], Float[Array, "B T D"]]:
    """Computes the gradients with respect to a device's shard of the matrix and hidden states.

    Args:
      of_tokens: for each target, its entropy H and log Σ exp(s), and the gradients with respect to
        its log-probability and to H.
    """
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1, 1)
    entropy, log_total, by_logprob, by_entropy = (x.reshape(-1, 1) for x in of_tokens)
    of_flat = flat_sets(sets)

    def add(total: Float[Array, "N D"], block: Blocks) -> tuple[Array, Float[Array, "D v"]]:
        logits = plan.logits(flat, block)
        logprobs = plan.scaled(logits, block, of_flat) - log_total
        probs = jnp.exp(logprobs)
        # ∂ log p_c / ∂s = 1[c] − p, and ∂H / ∂s = −p · (log p + H).
        by_scaled = by_logprob * ((block.ids == wanted) - probs)
        by_scaled = by_scaled - by_entropy * probs * (logprobs + entropy)
        by_logits = plan.by_logits(by_scaled, logits, block, of_flat).astype(flat.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        by_block = product("ND,Nv->Dv", flat, by_logits)
        total = total + product("Nv,Dv->ND", by_logits, block.kernel)
        return total, reduced(plan.cuts, by_block)

    start = jnp.zeros(flat.shape, jnp.float32)
    by_hidden, by_blocks = plan.scan(add, start, plan.blocks(kernel, hidden.dtype))
    if plan.cuts.apart:
        by_hidden = jax.lax.psum(by_hidden, plan.cuts.apart)
    by_kernel = by_blocks.swapaxes(1, 2).reshape(-1, by_blocks.shape[1])[: plan.vocab]
    if plan.cuts.repeated:
        by_kernel = jax.lax.psum(by_kernel, plan.cuts.repeated)
    return by_kernel.astype(kernel.dtype), by_hidden.reshape(hidden.shape).astype(hidden.dtype)
