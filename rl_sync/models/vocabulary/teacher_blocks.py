"""Compares a policy with its teacher over the vocabulary, block by block.

As in `vocabulary_blocks`, neither a whole matrix nor all logits are ever in memory, and logits stay
sharded along the mesh axes that shard the vocabulary but not the rows. Gradients flow to the policy
alone.

Letters in shapes: B rows, T positions, N tokens of a device, V vocab, D embed, K tokens that are
compared, v tokens of the vocabulary in a block.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.vocabulary.token_sets import EVERYTHING, LogprobSettings, TokenSets
from rl_sync.models.vocabulary.vocabulary_blocks import (
    BlockPlan,
    Blocks,
    flat_sets,
    plan_of,
    scan_gathered,
)
from rl_sync.models.vocabulary.vocabulary_cuts import reduced


class Scored(NamedTuple):
    """Inputs of logits, of a policy or of a teacher.

    Attributes:
      kernel: the output projection.
      hidden: hidden state of the token before each target.
    """

    kernel: Float[Array, "V D"]
    hidden: Float[Array, "B T D"]

    @property
    def flat(self) -> Float[Array, "N D"]:
        """The states of all rows, one after the other."""
        return self.hidden.reshape(-1, self.hidden.shape[-1])


def _planned(of: Scored, settings: LogprobSettings) -> BlockPlan:
    return plan_of(of.kernel.shape, of.hidden.shape[:2], settings)


def _spec(plan: BlockPlan) -> Scored:
    """Shardings of the inputs of logits."""
    specs: tuple[Any, ...] = plan.cuts.matrix_spec, plan.cuts.row_spec
    return Scored(*specs)


class BestTokens(NamedTuple):
    """The most likely tokens at each position, the best first.

    Attributes:
      ids: the tokens.
      logprobs: their log-probabilities.
    """

    ids: Int[Array, "B T K"]
    logprobs: Float[Array, "B T K"]


class _Plans(NamedTuple):
    """Plans of blocks of the same tokens, for the policy and for the teacher."""

    policy: BlockPlan
    teacher: BlockPlan

    def gathered(self, blocks: tuple[Blocks, Blocks]) -> tuple[Blocks, Blocks]:
        """Gathers one block of both matrices."""
        return self.policy.gathered(blocks[0]), self.teacher.gathered(blocks[1])

    def blocks(self, policy: Scored, teacher: Scored) -> tuple[Blocks, Blocks]:
        """Cuts a device's shards of both matrices into shards of blocks."""
        return (
            self.policy.blocks(policy.kernel, policy.hidden.dtype),
            self.teacher.blocks(teacher.kernel, teacher.hidden.dtype),
        )


class _Sums(NamedTuple):
    """Values of each token over the vocabulary so far, for scaled logits s and the teacher's u.

    Attributes:
      highest, total: max s and Σ exp(s − highest).
      other_highest, other_total: the same of u.
      weighted: Σ exp(s − highest) · (s − u).
    """

    highest: Float[Array, " N"]
    total: Float[Array, " N"]
    other_highest: Float[Array, " N"]
    other_total: Float[Array, " N"]
    weighted: Float[Array, " N"]


def block_divergence(
    policy: Scored, teacher: Scored, settings: LogprobSettings, sets: TokenSets = EVERYTHING
) -> Float[Array, "B T"]:
    """Computes KL(π ‖ q) = Σ π (log π − log q) over the vocabulary, in nats, at each position.

    Both distributions have the temperature and the repetition penalty, over the same sets. The
    policy's gradient is that of the sum: ∂KL/∂s = π (log π − log q − KL) for its scaled logits s.

    Args:
      policy: gradients flow to it.
      teacher: a model of the same vocabulary.
      settings: see `block_logprobs`.
      sets: see `next_logprobs`.
    """
    assert len(policy.kernel) == len(teacher.kernel)
    teacher = jax.lax.stop_gradient(teacher)
    plans = [_planned(one, settings) for one in (policy, teacher)]
    size = min(plan.size for plan in plans)
    both = _Plans(*(plan._replace(size=size) for plan in plans))
    return _divergence(both, policy, teacher, sets)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _divergence(
    plans: _Plans, policy: Scored, teacher: Scored, sets: TokenSets
) -> Float[Array, "B T"]:
    return _compared(plans, policy, teacher, sets).divergence


class _Compared(NamedTuple):
    """The divergence at each position, and log Σ exp of the policy's and the teacher's logits."""

    divergence: Float[Array, "B T"]
    log_total: Float[Array, "B T"]
    other_log_total: Float[Array, "B T"]


def _compared(plans: _Plans, policy: Scored, teacher: Scored, sets: TokenSets) -> _Compared:
    rows: Any = plans.policy.cuts.row_spec
    return plans.policy.cuts.mapped(
        functools.partial(_compared_on_each, plans),
        policy,
        teacher,
        sets,
        inputs=(_spec(plans.policy), _spec(plans.teacher), rows),
        outputs=_Compared(rows, rows, rows),
    )


def _divergence_forward(
    plans: _Plans, policy: Scored, teacher: Scored, sets: TokenSets
) -> tuple[Array, tuple[Scored, Scored, TokenSets, _Compared]]:
    found = _compared(plans, policy, teacher, sets)
    return found.divergence, (policy, teacher, sets, found)


def _divergence_backward(
    plans: _Plans, kept: tuple[Scored, Scored, TokenSets, _Compared], by_divergence: Array
) -> tuple[Scored, None, None]:
    cuts, rows = plans.policy.cuts, plans.policy.cuts.row_spec
    by_policy = cuts.mapped(
        functools.partial(_compared_gradients, plans),
        *kept,
        by_divergence,
        inputs=(_spec(plans.policy), _spec(plans.teacher), rows, rows, rows),
        outputs=_spec(plans.policy),
    )
    return by_policy, None, None


_divergence.defvjp(_divergence_forward, _divergence_backward)


def _compared_on_each(plans: _Plans, policy: Scored, teacher: Scored, sets: TokenSets) -> _Compared:
    """Computes the divergence of a device's own rows, and log Σ exp of s and of u."""
    of_flat = flat_sets(sets)

    def add(seen: _Sums, blocks: tuple[Blocks, Blocks]) -> tuple[_Sums, None]:
        scaled = plans.policy.scaled(
            plans.policy.logits(policy.flat, blocks[0]), blocks[0], of_flat
        )
        taught = plans.teacher.logits(teacher.flat, blocks[1])
        taught = plans.teacher.scaled(taught, blocks[1], of_flat)
        highest = jnp.maximum(seen.highest, scaled.max(axis=-1))
        shrunk, weights = jnp.exp(seen.highest - highest), jnp.exp(scaled - highest[:, None])
        other_highest = jnp.maximum(seen.other_highest, taught.max(axis=-1))
        other_shrunk = jnp.exp(seen.other_highest - other_highest)
        after = _Sums(
            highest,
            seen.total * shrunk + weights.sum(axis=-1),
            other_highest,
            seen.other_total * other_shrunk + jnp.exp(taught - other_highest[:, None]).sum(axis=-1),
            seen.weighted * shrunk + (weights * (scaled - taught)).sum(axis=-1),
        )
        return after, None

    nothing = jnp.zeros(len(policy.flat))
    start = _Sums(nothing - jnp.inf, nothing, nothing - jnp.inf, nothing, nothing)
    seen, _ = scan_gathered(plans.gathered, add, start, plans.blocks(policy, teacher))
    if axes := plans.policy.cuts.apart:
        seen = _sums_over_parts(seen, axes)
    log_total = seen.highest + jnp.log(seen.total)
    other_log_total = seen.other_highest + jnp.log(seen.other_total)
    # KL = Σ π (s − u) − log Σ exp(s) + log Σ exp(u)
    divergence = seen.weighted / seen.total - log_total + other_log_total
    shape = policy.hidden.shape[:2]
    return _Compared(*(x.reshape(shape) for x in (divergence, log_total, other_log_total)))


def _sums_over_parts(seen: _Sums, axes: tuple[str, ...]) -> _Sums:
    """Combines the values of devices that have different parts of the vocabulary."""
    highest, other_highest = jax.lax.pmax((seen.highest, seen.other_highest), axes)
    shrunk = jnp.exp(seen.highest - highest)
    other_shrunk = jnp.exp(seen.other_highest - other_highest)
    parts = jnp.stack(
        [seen.total * shrunk, seen.other_total * other_shrunk, seen.weighted * shrunk]
    )
    total, other_total, weighted = jax.lax.psum(parts, axes)
    return _Sums(highest, total, other_highest, other_total, weighted)


def _compared_gradients(
    plans: _Plans,
    policy: Scored,
    teacher: Scored,
    sets: TokenSets,
    found: _Compared,
    by_divergence: Float[Array, "B T"],
) -> Scored:
    """Computes the gradients with respect to a device's shard of the policy's matrix and states."""
    divergence, log_total, other_log_total = (x.reshape(-1, 1) for x in found)
    of_flat, plan, weights = flat_sets(sets), plans.policy, by_divergence.reshape(-1, 1)

    def add(total: Array, blocks: tuple[Blocks, Blocks]) -> tuple[Array, Float[Array, "D v"]]:
        logits = plan.logits(policy.flat, blocks[0])
        logprobs = plan.scaled(logits, blocks[0], of_flat) - log_total
        taught = plans.teacher.logits(teacher.flat, blocks[1])
        others = plans.teacher.scaled(taught, blocks[1], of_flat) - other_log_total
        by_scaled = weights * jnp.exp(logprobs) * (logprobs - others - divergence)
        by_logits = plan.by_logits(by_scaled, logits, blocks[0], of_flat)
        return _added(plan, total, policy.flat, by_logits, blocks[0])

    start = jnp.zeros(policy.flat.shape, jnp.float32)
    both = plans.blocks(policy, teacher)
    return _whole(plan, policy, *scan_gathered(plans.gathered, add, start, both))


def _added(
    plan: BlockPlan,
    total: Float[Array, "N D"],
    flat: Float[Array, "N D"],
    by_logits: Float[Array, "N v"],
    block: Blocks,
) -> tuple[Float[Array, "N D"], Float[Array, "D v"]]:
    """Adds a block's part to the gradient of the states, and returns that of its matrix."""
    by_logits = by_logits.astype(flat.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    by_block = product("ND,Nv->Dv", flat, by_logits)
    return total + product("Nv,Dv->ND", by_logits, block.kernel), reduced(plan.cuts, by_block)


def _whole(
    plan: BlockPlan, of: Scored, by_hidden: Float[Array, "N D"], by_blocks: Float[Array, "n D v"]
) -> Scored:
    """Sums gradients over devices, in the shapes and dtypes of a matrix and its states."""
    if plan.cuts.apart:
        by_hidden = jax.lax.psum(by_hidden, plan.cuts.apart)
    by_kernel = by_blocks.swapaxes(1, 2).reshape(-1, by_blocks.shape[1])[: plan.vocab]
    if plan.cuts.repeated:
        by_kernel = jax.lax.psum(by_kernel, plan.cuts.repeated)
    kernel, hidden = of
    return Scored(
        by_kernel.astype(kernel.dtype), by_hidden.reshape(hidden.shape).astype(hidden.dtype)
    )


def best_tokens(
    teacher: Scored, count: int, settings: LogprobSettings, sets: TokenSets = EVERYTHING
) -> BestTokens:
    """Finds the `count` most likely tokens at each position, without a gradient.

    Args:
      teacher: the model whose tokens are taken.
      count: K, at most V. If a set has fewer tokens, others follow with log-probabilities near
        `NOTHING`.
      settings, sets: see `block_divergence`.
    """
    teacher = jax.lax.stop_gradient(teacher)
    plan = _planned(teacher, settings)
    rows: Any = plan.cuts.row_spec
    return plan.cuts.mapped(
        functools.partial(_best_on_each, plan, count),
        teacher,
        sets,
        inputs=(_spec(plan), rows),
        outputs=BestTokens(rows, rows),
    )


class _SomeLogits(NamedTuple):
    """Values of each token over the vocabulary so far, for scaled logits s.

    Attributes:
      highest, total: max s and Σ exp(s − highest).
      some: s of some tokens.
    """

    highest: Float[Array, " N"]
    total: Float[Array, " N"]
    some: Float[Array, "N K"]

    @classmethod
    def nothing(cls, some: Float[Array, "N K"]) -> _SomeLogits:
        """Returns the values before the first block."""
        none = jnp.zeros(some.shape[0])
        return cls(none - jnp.inf, none, some)

    def and_block(self, scaled: Float[Array, "N v"], some: Float[Array, "N K"]) -> _SomeLogits:
        """Returns the values after one more block."""
        highest = jnp.maximum(self.highest, scaled.max(axis=-1))
        more = jnp.exp(scaled - highest[:, None]).sum(axis=-1)
        return _SomeLogits(highest, self.total * jnp.exp(self.highest - highest) + more, some)

    def over(self, axes: tuple[str, ...]) -> _SomeLogits:
        """Combines sums of devices that have different parts of the vocabulary."""
        if not axes:
            return self
        highest = jax.lax.pmax(self.highest, axes)
        total = jax.lax.psum(self.total * jnp.exp(self.highest - highest), axes)
        return self._replace(highest=highest, total=total)

    @property
    def log_total(self) -> Float[Array, " N"]:
        """log Σ exp(s)."""
        return self.highest + jnp.log(self.total)


def _best_on_each(plan: BlockPlan, count: int, teacher: Scored, sets: TokenSets) -> BestTokens:
    of_flat = flat_sets(sets)

    def add(
        before: tuple[_SomeLogits, Array], block: Blocks
    ) -> tuple[tuple[_SomeLogits, Array], None]:
        seen, ids = before
        scaled = plan.scaled(plan.logits(teacher.flat, block), block, of_flat)
        there = jnp.broadcast_to(block.ids, scaled.shape)
        best, ids = _best_of(
            count,
            jnp.concatenate([seen.some, jnp.where(block.ids >= 0, scaled, -jnp.inf)], axis=-1),
            jnp.concatenate([ids, there], axis=-1),
        )
        return (seen.and_block(scaled, best), ids), None

    shape = (len(teacher.flat), count)
    start = _SomeLogits.nothing(jnp.full(shape, -jnp.inf)), jnp.zeros(shape, jnp.int32)
    blocks = plan.blocks(teacher.kernel, teacher.hidden.dtype)
    (seen, ids), _ = plan.scan(add, start, blocks)
    axes, best = plan.cuts.apart, seen.some
    if axes:
        every = (jax.lax.all_gather(x, axes, axis=1, tiled=True) for x in (best, ids))
        best, ids = _best_of(count, *every)
    logprobs = best - seen.over(axes).log_total[:, None]
    rows = teacher.hidden.shape[:2]
    return BestTokens(ids.reshape(*rows, count), logprobs.reshape(*rows, count))


def _best_of(
    count: int, values: Float[Array, "N M"], ids: Int[Array, "N M"]
) -> tuple[Float[Array, "N K"], Int[Array, "N K"]]:
    """Returns the greatest values, and their ids."""
    best, at = jax.lax.top_k(values, count)
    return best, jnp.take_along_axis(ids, at, axis=-1)


def given_logprobs(
    policy: Scored,
    ids: Int[Array, "B T K"],
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> Float[Array, "B T K"]:
    """Computes the policy's log-probabilities of several given tokens at each position.

    Args:
      policy: gradients flow to it.
      ids: the tokens.
      settings, sets: see `block_divergence`.
    """
    return _given(_planned(policy, settings), policy, ids, sets)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _given(
    plan: BlockPlan, policy: Scored, ids: Int[Array, "B T K"], sets: TokenSets
) -> Float[Array, "B T K"]:
    return _given_and_total(plan, policy, ids, sets)[0]


def _given_and_total(
    plan: BlockPlan, policy: Scored, ids: Int[Array, "B T K"], sets: TokenSets
) -> tuple[Float[Array, "B T K"], Float[Array, "B T"]]:
    rows = plan.cuts.row_spec
    return plan.cuts.mapped(
        functools.partial(_given_on_each, plan),
        policy,
        ids,
        sets,
        inputs=(_spec(plan), rows, rows),
        outputs=(rows, rows),
    )


def _given_forward(
    plan: BlockPlan, policy: Scored, ids: Int[Array, "B T K"], sets: TokenSets
) -> tuple[Array, tuple[Scored, Array, TokenSets, Array]]:
    logprobs, log_total = _given_and_total(plan, policy, ids, sets)
    return logprobs, (policy, ids, sets, log_total)


def _given_backward(
    plan: BlockPlan, kept: tuple[Scored, Array, TokenSets, Array], by_logprobs: Array
) -> tuple[Scored, None, None]:
    rows = plan.cuts.row_spec
    by_policy = plan.cuts.mapped(
        functools.partial(_given_gradients, plan),
        *kept,
        by_logprobs,
        inputs=(_spec(plan), *(rows,) * 4),
        outputs=_spec(plan),
    )
    return by_policy, None, None


_given.defvjp(_given_forward, _given_backward)


def _chosen(
    plan: BlockPlan, ids: Int[Array, " v"], wanted: Int[Array, "N K"], scaled: Float[Array, "N v"]
) -> Float[Array, "N K"]:
    """Returns the scaled logit of each wanted token; 0 if it is in another block."""
    return jax.vmap(plan.chosen, (None, None, 1), 1)(scaled, ids, wanted)


def _given_on_each(
    plan: BlockPlan, policy: Scored, ids: Int[Array, "B T K"], sets: TokenSets
) -> tuple[Float[Array, "B T K"], Float[Array, "B T"]]:
    """Computes log-probabilities of a device's own rows, and log Σ exp(s)."""
    of_flat, wanted = flat_sets(sets), ids.reshape(-1, ids.shape[-1])

    def add(seen: _SomeLogits, block: Blocks) -> tuple[_SomeLogits, None]:
        scaled = plan.scaled(plan.logits(policy.flat, block), block, of_flat)
        return seen.and_block(scaled, seen.some + _chosen(plan, block.ids, wanted, scaled)), None

    blocks = plan.blocks(policy.kernel, policy.hidden.dtype)
    seen, _ = plan.scan(add, _SomeLogits.nothing(jnp.zeros(wanted.shape)), blocks)
    axes = plan.cuts.apart
    chosen = jax.lax.psum(seen.some, axes) if axes else seen.some
    log_total = seen.over(axes).log_total
    logprobs = chosen - log_total[:, None]
    return logprobs.reshape(ids.shape), log_total.reshape(ids.shape[:2])


def _given_gradients(
    plan: BlockPlan,
    policy: Scored,
    ids: Int[Array, "B T K"],
    sets: TokenSets,
    log_total: Float[Array, "B T"],
    by_logprobs: Float[Array, "B T K"],
) -> Scored:
    """Computes the gradients with respect to a device's shard of the matrix and states."""
    of_flat, wanted = flat_sets(sets), ids.reshape(-1, ids.shape[-1])
    log_total, by_logprobs = log_total.reshape(-1, 1), by_logprobs.reshape(wanted.shape)
    together = by_logprobs.sum(axis=-1, keepdims=True)

    def add(total: Array, block: Blocks) -> tuple[Array, Float[Array, "D v"]]:
        logits = plan.logits(policy.flat, block)
        scaled = plan.scaled(logits, block, of_flat)
        _, back = jax.vjp(functools.partial(_chosen, plan, block.ids, wanted), scaled)
        # ∂ log π_c / ∂s = 1[c] − π
        by_scaled = back(by_logprobs)[0] - together * jnp.exp(scaled - log_total)
        by_logits = plan.by_logits(by_scaled, logits, block, of_flat)
        return _added(plan, total, policy.flat, by_logits, block)

    start = jnp.zeros(policy.flat.shape, jnp.float32)
    blocks = plan.blocks(policy.kernel, policy.hidden.dtype)
    return _whole(plan, policy, *plan.scan(add, start, blocks))
