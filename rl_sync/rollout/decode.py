"""Generating completions: a pure core of prefill and decode chunks, and a loop around it.

Every row has a static slot, its own position and its own key, so what a row becomes does not
depend on the rows beside it. Parameters and sampling choices are arguments of the compiled
functions: new weights between two chunks compile nothing.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from rl_sync.models import transformer
from rl_sync.models.attention import KVCache
from rl_sync.models.config import ModelConfig
from rl_sync.rollout.sampling import Knobs, Sampling, sample
from rl_sync.types import Params

CHUNK_TOKENS = 32


class Completions(NamedTuple):
    """Rows of prompt, completion, padding (id 0); T = P + max_new_tokens.

    Attributes:
      tokens: the rows.
      completion_mask: true at the completion, its end-of-sequence token included.
      behavior_logprobs: of the distribution that was sampled from; 0 where the mask is false.
    """

    tokens: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]


class DecodeState(NamedTuple):
    """Everything that a decode step reads and writes.

    Attributes:
      completions: what there is so far.
      cache: keys and values of all tokens but the newest.
      keys: each row's own key, the same throughout.
      newest: the position of each row's newest token.
      generated: tokens of the completion so far.
      live: whether the row still generates.
    """

    completions: Completions
    cache: KVCache
    keys: Key[Array, " B"]
    newest: Int[Array, " B"]
    generated: Int[Array, " B"]
    live: Bool[Array, " B"]


def _emit(
    state: DecodeState, logits: Float[Array, "B V"], knobs: Knobs, max_new_tokens: int
) -> DecodeState:
    """Draws each live row's next token and writes it after its newest."""
    draw_keys = jax.vmap(jax.random.fold_in)(state.keys, state.generated)
    drawn, logprobs = sample(draw_keys, logits, knobs)
    tokens, mask, behavior = state.completions
    here = jnp.arange(tokens.shape[1]) == (state.newest + 1)[:, None]
    here = here & state.live[:, None]
    generated = state.generated + state.live
    return state._replace(
        completions=Completions(
            jnp.where(here, drawn[:, None], tokens),
            mask | here,
            jnp.where(here, logprobs[:, None], behavior),
        ),
        newest=state.newest + state.live,
        generated=generated,
        live=state.live & (drawn != knobs.eos_id) & (generated < max_new_tokens),
    )


@functools.partial(jax.jit, static_argnames=("config", "max_new_tokens"))
def prefill(
    config: ModelConfig,
    params: Params,
    prompts: Int[Array, "B P"],
    prompt_lengths: Int[Array, " B"],
    keys: Key[Array, " B"],
    knobs: Knobs,
    max_new_tokens: int,
) -> DecodeState:
    """Reads the prompts and draws every row's first token.

    Args:
      prompts: padded on the right with id 0.
      prompt_lengths: at least 1 each.
    """
    B, _ = prompts.shape
    hidden, filled = transformer.prefill(config, params, prompts)
    cache = jax.tree.map(
        lambda slots: jnp.pad(slots, [(0, 0)] * 3 + [(0, max_new_tokens), (0, 0)]), filled
    )
    last = transformer.logits(config, params, hidden[jnp.arange(B), prompt_lengths - 1])
    tokens = jnp.pad(prompts, ((0, 0), (0, max_new_tokens)))
    state = DecodeState(
        Completions(tokens, jnp.zeros_like(tokens, bool), jnp.zeros_like(tokens, jnp.float32)),
        cache,
        keys,
        newest=prompt_lengths - 1,
        generated=jnp.zeros_like(prompt_lengths),
        live=jnp.ones_like(prompt_lengths, bool),
    )
    return _emit(state, last, knobs, max_new_tokens)


@functools.partial(
    jax.jit, static_argnames=("config", "max_new_tokens"), donate_argnames=("state",)
)
def decode_chunk(
    config: ModelConfig,
    params: Params,
    state: DecodeState,
    knobs: Knobs,
    max_new_tokens: int,
    chunk_tokens: Int[Array, ""],
) -> DecodeState:
    """Draws up to `chunk_tokens` tokens more a row; ends early when no row is live."""

    def step(carry: tuple[Array, DecodeState]) -> tuple[Array, DecodeState]:
        steps, state = carry
        length = state.completions.tokens.shape[1]
        tokens = state.completions.tokens[jnp.arange(state.newest.shape[0]), state.newest]
        hidden, cache = transformer.decode_step(
            config, params, tokens, state.newest, state.cache, span=length
        )
        logits = transformer.logits(config, params, hidden)
        state = _emit(state._replace(cache=cache), logits, knobs, max_new_tokens)
        return steps + 1, state

    def unfinished(carry: tuple[Array, DecodeState]) -> Array:
        steps, state = carry
        return (steps < chunk_tokens) & state.live.any()

    return jax.lax.while_loop(unfinished, step, (jnp.int32(0), state))[1]


def generate(
    config: ModelConfig,
    params: Params,
    prompts: Int[Array, "B P"],
    prompt_lengths: Int[Array, " B"],
    keys: Key[Array, " B"],
    sampling: Sampling,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Completions:
    """Completes every prompt.

    A row's completion depends on its prompt, its key and the parameters alone. Another batch of
    the same shape compiles nothing, and neither do other parameters or sampling choices (but for
    `max_new_tokens`, which is a shape).

    Args:
      prompts: padded on the right with id 0.
      prompt_lengths: at least 1 each.
      keys: one a row.
      chunk_tokens: how many tokens a call of the device draws before the host looks again.

    Raises:
      ValueError: prompts and completions together are longer than the model's rows.
    """
    length = prompts.shape[1] + sampling.max_new_tokens
    if length > config.max_length:
        raise ValueError(
            f"Prompts of {prompts.shape[1]} tokens and completions of {sampling.max_new_tokens}"
            f" need rows of {length}, but model.max_length={config.max_length}: raise it, or"
            " shorten either."
        )
    knobs = sampling.knobs()
    state = prefill(config, params, prompts, prompt_lengths, keys, knobs, sampling.max_new_tokens)
    drawn = 1
    while drawn < sampling.max_new_tokens and bool(state.live.any()):
        state = decode_chunk(
            config, params, state, knobs, sampling.max_new_tokens, jnp.int32(chunk_tokens)
        )
        drawn += chunk_tokens
    return state.completions
