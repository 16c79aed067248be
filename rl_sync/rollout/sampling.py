"""How a next token is drawn from logits: temperature, top-k, top-p, or greedily."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

_EXCLUDED = -jnp.inf


@dataclasses.dataclass(frozen=True)
class Sampling:
    """What the user chooses.

    Attributes:
      max_new_tokens: the most tokens of a completion, its end-of-sequence token included.
      eos_id: the token that ends a completion, and belongs to it.
      temperature: divides the logits; above 0.
      top_k: only the k likeliest tokens are drawn; 0 for all.
      top_p: only the fewest likeliest tokens whose probability reaches p are drawn; 1 for all.
      greedy: take the likeliest token whatever the fields above say.

    Raises:
      ValueError: a value outside its range.
    """

    max_new_tokens: int
    eos_id: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}.")
        if self.temperature <= 0:
            raise ValueError(
                f"temperature must be above 0, not {self.temperature}; for the likeliest token"
                " always, set greedy=True."
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 for all tokens), not {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}.")

    def knobs(self) -> Knobs:
        """The same choices as arrays, so that other values compile nothing."""
        return Knobs(
            jnp.float32(self.temperature),
            jnp.int32(self.top_k),
            jnp.float32(self.top_p),
            jnp.bool_(self.greedy),
            jnp.int32(self.eos_id),
        )


class Knobs(NamedTuple):
    """`Sampling` without its lengths, as scalars that a compiled function takes as arguments."""

    temperature: Float[Array, ""]
    top_k: Int[Array, ""]
    top_p: Float[Array, ""]
    greedy: Array
    eos_id: Int[Array, ""]


def sampled_logprobs(logits: Float[Array, "B V"], knobs: Knobs) -> Float[Array, "B V"]:
    """Log-probabilities of the distribution that is really sampled from, −∞ where excluded.

    Greedy sampling is the distribution with all its mass on the likeliest token: 0 there.
    """

    def tempered() -> Float[Array, "B V"]:
        filtering = (knobs.top_k > 0) | (knobs.top_p < 1)
        scores = jax.nn.log_softmax(logits / knobs.temperature, axis=-1)
        return jax.lax.cond(filtering, lambda s: _filter(s, knobs), lambda s: s, scores)

    def greedy() -> Float[Array, "B V"]:
        best = jnp.argmax(logits, axis=-1, keepdims=True)
        return jnp.where(jnp.arange(logits.shape[-1]) == best, 0.0, _EXCLUDED)

    return jax.lax.cond(knobs.greedy, greedy, tempered)


def _filter(scores: Float[Array, "B V"], knobs: Knobs) -> Float[Array, "B V"]:
    """Keeps the top-k, and of those the top-p, and normalizes again."""
    vocab_size = scores.shape[-1]
    order = jnp.argsort(-scores, axis=-1)
    ranks = jnp.argsort(order, axis=-1)
    k = jnp.where(knobs.top_k > 0, knobs.top_k, vocab_size)
    scores = jax.nn.log_softmax(jnp.where(ranks < k, scores, _EXCLUDED), axis=-1)
    likeliest_first = jnp.take_along_axis(jnp.exp(scores), order, axis=-1)
    mass_before = jnp.cumsum(likeliest_first, axis=-1) - likeliest_first
    kept = jnp.take_along_axis(mass_before < knobs.top_p, ranks, axis=-1)
    return jax.nn.log_softmax(jnp.where(kept, scores, _EXCLUDED), axis=-1)


def sample(
    keys: Key[Array, " B"], logits: Float[Array, "B V"], knobs: Knobs
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draws a token a row, each with its own key.

    Returns:
      (tokens, logprobs): the tokens, int32, and their log-probability under `sampled_logprobs`.
    """
    scores = sampled_logprobs(logits, knobs)
    tokens = jax.vmap(jax.random.categorical)(keys, scores).astype(jnp.int32)
    return tokens, jnp.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]
