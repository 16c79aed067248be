"""Computes log-probabilities of given tokens, without an array of [B, T, V] if it would be large.

Letters in shapes: B rows, T positions, C positions of a chunk, D embed, V vocab, K tokens of the
vocabulary whose log-probabilities are wanted at a position.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models import invariant
from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import platform
from rl_sync.models.sharding import cuts_positions, laid_out
from rl_sync.models.transformer import (
    hidden_states,
    output_projection,
    projected,
    projected_steadily,
)
from rl_sync.models.vocabulary.lookup import lookup
from rl_sync.models.vocabulary.token_sets import (
    EVERYTHING,
    LOGITS_BYTES,
    LogprobSettings,
    TokenSets,
    changed_logits,
)
from rl_sync.models.vocabulary.vocabulary_blocks import block_logprobs
from rl_sync.types import Params


def token_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    temperature: float = 1.0,
    logits_bytes: int = LOGITS_BYTES,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log π(token | earlier tokens) of every token, and the entropy of its distribution.

    Args:
      tokens: see `hidden_states`.
      temperature, logits_bytes: see `LogprobSettings`.

    Returns:
      (logprobs, entropy) in float32 and nats. Entry t belongs to `tokens[:, t]`; entry 0 is 0,
      since no token precedes it. Entries at padding, and at the first token of a later sequence in
      a row, are meaningless: mask them.
    """
    hidden = hidden_states(config, params, tokens)
    kernel = output_projection(config, params)
    settings = LogprobSettings(temperature, logits_bytes, batch_invariant=config.batch_invariant)
    return hidden_logprobs(kernel, hidden, tokens, settings)


def hidden_logprobs(
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes `token_logprobs` from known hidden states.

    Args:
      kernel: the output projection.
      sets: token sets from the second token on; see `next_logprobs`.
    """
    first = ((0, 0), (1, 0))
    if cuts_positions():  # One position less could not be cut evenly: the last has no meaning.
        more = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0))), sets)
        found = next_logprobs(kernel, hidden, jnp.roll(tokens, -1, axis=1), settings, more)
        logprobs, entropy = (values[:, :-1] for values in found)
    else:
        logprobs, entropy = next_logprobs(kernel, hidden[:, :-1], tokens[:, 1:], settings, sets)
    return jnp.pad(logprobs, first), jnp.pad(entropy, first)


def next_logprobs(
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log-probabilities and entropies, as `token_logprobs` does, from given hidden states.

    Args:
      kernel: the output projection.
      hidden: hidden state of the token before each target.
      sets: for each target, the tokens that could be sampled, and the tokens with a repetition
        penalty. Probabilities and entropies refer to the distribution over the tokens that could be
        sampled.
    """
    B, T, _ = hidden.shape
    chunk = max(1, settings.logits_bytes // (4 * B * kernel.shape[0]))
    # Each chunk adds to the gradient of the whole matrix, which takes long on accelerators. Blocks
    # add to that of the hidden states, which is smaller.
    blocks = laid_out() or (chunk < T and platform() != "cpu")
    if blocks and not settings.batch_invariant:
        return block_logprobs(kernel, hidden, targets, settings, sets)
    compute = functools.partial(_logprobs_and_entropy, kernel, settings)
    given = hidden, targets, sets
    return compute(*given) if chunk >= T else _by_chunks(compute, given, chunk)


def next_distribution(
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    logprobs: Float[Array, "B T"],
    ids: Int[Array, "B T K"] | None,
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> Float[Array, "B T K"]:
    """Computes log-probabilities of several tokens at each position, as `next_logprobs` does.

    Args:
      logprobs: log-probabilities of the targets.
      ids: the tokens; None for the whole vocabulary, whose logits are then in memory at once.
    """
    if ids is None:
        everything = jnp.arange(kernel.shape[0])
        scaled = changed_logits(projected(kernel, hidden), sets, everything, settings)
        return jax.nn.log_softmax(scaled, axis=-1)

    def scaled_at(wanted: Int[Array, "B T"]) -> Float[Array, "B T"]:
        if laid_out():
            taken = lookup(kernel, wanted, str(hidden.dtype))
        else:
            taken = kernel[wanted].astype(hidden.dtype)
        logits = jnp.einsum("BTD,BTD->BT", hidden, taken, preferred_element_type=jnp.float32)
        at = jax.vmap(jax.vmap(functools.partial(changed_logits, settings=settings)))
        return at(logits[..., None], sets, wanted[..., None])[..., 0]

    # log Σ exp(s) is known from the target's log-probability.
    log_total = scaled_at(targets) - logprobs
    found = jax.lax.map(jax.checkpoint(scaled_at), jnp.moveaxis(ids, -1, 0))
    return jnp.moveaxis(found, 0, -1) - log_total[..., None]


def hidden_distribution(
    kernel: Float[Array, "V D"],
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    logprobs: Float[Array, "B T"],
    ids: Int[Array, "B T K"] | None,
    settings: LogprobSettings,
    sets: TokenSets = EVERYTHING,
) -> Float[Array, "B T K"]:
    """Computes `next_distribution` of each token from known hidden states; the first has none.

    Args:
      logprobs: log-probabilities as `hidden_logprobs` returns them.
      sets: token sets from the second token on.
    """
    # The last position has no meaning, but one less could not be cut evenly.
    more = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0))), sets)
    targets, logprobs = jnp.roll(tokens, -1, axis=1), jnp.roll(logprobs, -1, axis=1)
    ids = None if ids is None else jnp.roll(ids, -1, axis=1)
    found = next_distribution(kernel, hidden, targets, logprobs, ids, settings, more)
    return jnp.roll(found, 1, axis=1).at[:, 0].set(0.0)


def _logprobs_and_entropy(
    kernel: Float[Array, "V D"],
    settings: LogprobSettings,
    hidden: Float[Array, "B C D"],
    targets: Int[Array, "B C"],
    sets: TokenSets,
) -> tuple[Float[Array, "B C"], Float[Array, "B C"]]:
    ids = jnp.arange(kernel.shape[0])
    project = projected_steadily if settings.batch_invariant else projected
    scaled = changed_logits(project(kernel, hidden), sets, ids, settings)
    chosen = jnp.take_along_axis(scaled, targets[..., None], axis=-1)[..., 0]
    if settings.batch_invariant:
        logprobs, log_total = invariant.chosen_logprobs(scaled, chosen, invariant.sharing(scaled))
    else:
        log_total = jax.nn.logsumexp(scaled, axis=-1)
        logprobs = chosen - log_total
    # H = log Σ exp(s) − Σ p·s, for scaled logits s
    mean = jnp.sum(jnp.exp(scaled - log_total[..., None]) * scaled, axis=-1)
    return logprobs, log_total - mean


def _by_chunks(
    compute: functools.partial[tuple[Array, Array]],
    given: tuple[Float[Array, "B T D"], Int[Array, "B T"], TokenSets],
    chunk: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    B, T = given[1].shape
    chunks = -(-T // chunk)
    more = chunks * chunk - T

    def cut(x: Array) -> Array:
        kept = ((0, 0),) * (x.ndim - 2)
        rows = jnp.pad(x, ((0, 0), (0, more), *kept)).reshape(B, chunks, chunk, *x.shape[2:])
        return rows.swapaxes(0, 1)

    found = jax.lax.map(lambda part: jax.checkpoint(compute)(*part), jax.tree.map(cut, given))
    logprobs, entropy = (values.swapaxes(0, 1).reshape(B, -1)[:, :T] for values in found)
    return logprobs, entropy
