"""Computes log-probabilities of given tokens, without an array of [B, T, V] if it would be large.

Letters in shapes: B rows, T positions, C positions of a chunk, D embed, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import platform
from rl_sync.models.sharding import cuts_positions, laid_out
from rl_sync.models.token_sets import EVERYTHING, TokenSets, changed_logits
from rl_sync.models.transformer import hidden_states, logits, output_projection
from rl_sync.models.vocabulary.vocabulary_blocks import block_logprobs
from rl_sync.types import Params

LOGITS_BYTES = 64 << 20


def token_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    temperature: float = 1.0,
    *,
    positions: Int[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
    logits_bytes: int = LOGITS_BYTES,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log π(token | earlier tokens) of every token, and the entropy of its distribution.

    Args:
      tokens, positions, segments: see `hidden_states`.
      temperature: divisor of the logits; use the temperature that the tokens were sampled with.
      logits_bytes: maximum memory, on each device, for logits at one time. If they need more, they
        are computed in parts, and recomputed in the backward pass: in blocks of the vocabulary (see
        `block_logprobs`), and on one CPU device in chunks of positions.

      Returns:
        (logprobs, entropy) in float32 and nats. Entry t belongs to `tokens[:, t]`; entry 0 is 0,
        since no token precedes it. Entries at padding, and at the first token of a later sequence
        in a row, are meaningless: mask them.
    """
    hidden = hidden_states(config, params, tokens, positions, segments)
    return hidden_logprobs(config, params, hidden, tokens, temperature, logits_bytes)


def hidden_logprobs(
    config: ModelConfig,
    params: Params,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    temperature: float = 1.0,
    logits_bytes: int = LOGITS_BYTES,
    *,
    sets: TokenSets = EVERYTHING,
    repetition_penalty: float = 1.0,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes `token_logprobs` from known hidden states.

    Args:
      sets: token sets from the second token on; see `next_logprobs`.
    """
    compute = functools.partial(
        next_logprobs,
        config,
        params,
        temperature=temperature,
        logits_bytes=logits_bytes,
        repetition_penalty=repetition_penalty,
    )
    first = ((0, 0), (1, 0))
    if cuts_positions():  # One position less could not be cut evenly: the last has no meaning.
        more = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0))), sets)
        found = compute(hidden, jnp.roll(tokens, -1, axis=1), sets=more)
        logprobs, entropy = (values[:, :-1] for values in found)
    else:
        logprobs, entropy = compute(hidden[:, :-1], tokens[:, 1:], sets=sets)
    return jnp.pad(logprobs, first), jnp.pad(entropy, first)


def next_logprobs(
    config: ModelConfig,
    params: Params,
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    temperature: float = 1.0,
    logits_bytes: int = LOGITS_BYTES,
    *,
    sets: TokenSets = EVERYTHING,
    repetition_penalty: float = 1.0,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes log-probabilities and entropies, as `token_logprobs` does, from given hidden states.

    Args:
      hidden: hidden state of the token before each target.
      sets: for each target, the tokens that could be sampled, and the tokens with a repetition
        penalty. Probabilities and entropies refer to the distribution over the tokens that could be
        sampled.
      repetition_penalty: see `Sampling`.
    """
    B, T, _ = hidden.shape
    chunk = max(1, logits_bytes // (4 * B * config.vocab_size))
    # Each chunk adds to the gradient of the whole matrix, which takes long on accelerators. Blocks
    # add to that of the hidden states, which is smaller.
    if laid_out() or (chunk < T and platform() != "cpu"):
        kernel = output_projection(config, params)
        return block_logprobs(
            kernel,
            hidden,
            targets,
            temperature,
            logits_bytes,
            sets=sets,
            repetition_penalty=repetition_penalty,
        )
    change = functools.partial(
        changed_logits,
        ids=jnp.arange(config.vocab_size),
        temperature=temperature,
        repetition_penalty=repetition_penalty,
    )
    compute = functools.partial(_logprobs_and_entropy, config, params, change)
    given = hidden, targets, sets
    return compute(*given) if chunk >= T else _by_chunks(compute, given, chunk)


def _logprobs_and_entropy(
    config: ModelConfig,
    params: Params,
    change: Callable[[Float[Array, "B C V"], TokenSets], Float[Array, "B C V"]],
    hidden: Float[Array, "B C D"],
    targets: Int[Array, "B C"],
    sets: TokenSets,
) -> tuple[Float[Array, "B C"], Float[Array, "B C"]]:
    scaled = change(logits(config, params, hidden), sets)
    log_total = jax.nn.logsumexp(scaled, axis=-1)
    chosen = jnp.take_along_axis(scaled, targets[..., None], axis=-1)[..., 0]
    # H = log Σ exp(s) − Σ p·s, for scaled logits s
    mean = jnp.sum(jnp.exp(scaled - log_total[..., None]) * scaled, axis=-1)
    return chosen - log_total, log_total - mean


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
