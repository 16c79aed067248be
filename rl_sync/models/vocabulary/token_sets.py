"""Keeps sets of vocabulary tokens at each position: those that could be sampled, or occurred.

A policy is the distribution that its tokens are sampled from, so everything that changes logits
before sampling belongs to it: the temperature; a repetition penalty, which depends on the earlier
tokens; and the set of tokens that top-k, top-p, min-p or a minimum length did not exclude, which
depends on the weights at sampling. Explorers record this set (Keep Sampling Mask: DeepSeek-V3.2,
arXiv:2512.02556, section 3.1), and log-probabilities come from a softmax over the same set.

Sets are stored as bits, 32 tokens of the vocabulary in a word; see `rl_sync.sampling_masks`.

Letters in shapes: B rows, T positions, E entries of a row, V vocab, W words of the vocabulary,
v tokens of the vocabulary in a block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from rl_sync.models.sharding import constrain
from rl_sync.sampling_masks import ALONE, WORD_BITS, word_count
from rl_sync.types import Packing

NOTHING = -1e30
"""Logit of probability 0; it is finite, so that 0 times it is 0."""


class TokenSets(NamedTuple):
    """Sets of tokens, one for each target.

    Attributes:
      kept: tokens that the target could be sampled from; None for the whole vocabulary everywhere.
      seen: tokens before the target, for a repetition penalty; None without a penalty.
    """

    kept: UInt32[Array, "B T W"] | None = None
    seen: UInt32[Array, "B T W"] | None = None


EVERYTHING = TokenSets()
LOGITS_BYTES = 64 << 20


class LogprobSettings(NamedTuple):
    """Distribution that log-probabilities refer to, and the memory for computing them.

    Attributes:
      temperature: divisor of the logits; use the temperature that the tokens were sampled with.
      logits_bytes: maximum memory, on each device, for logits at one time. If they need more, they
        are computed in parts, and recomputed in the backward pass: in blocks of the vocabulary (see
        `block_logprobs`), and on one CPU device in chunks of positions.
      repetition_penalty: penalty of the tokens in `TokenSets.seen`, before the division; see
        `Sampling`.
    """

    temperature: float = 1.0
    logits_bytes: int = LOGITS_BYTES
    repetition_penalty: float = 1.0
    batch_invariant: bool = False


def packed(members: Bool[Array, "B V"]) -> UInt32[Array, "B W"]:
    """Packs members of sets into words."""
    B, V = members.shape
    words = word_count(V)
    bits = jnp.pad(members, ((0, 0), (0, words * WORD_BITS - V))).reshape(B, words, WORD_BITS)
    return (bits * _bit(jnp.arange(WORD_BITS))).sum(axis=-1, dtype=jnp.uint32)


def holds(words: UInt32[Array, "*N W"], ids: Int[Array, " v"]) -> Bool[Array, "*N v"]:
    """Returns a mask of the tokens that are in each set."""
    at = jnp.take(words, ids // WORD_BITS, axis=-1, mode="clip")
    return (at & _bit(ids % WORD_BITS)) != 0


def _bit(number: Int[Array, " v"]) -> UInt32[Array, " v"]:
    return jnp.uint32(1) << number.astype(jnp.uint32)


def kept_at(
    masks: UInt32[Array, "B E 3"], row_tokens: int, vocab_size: int
) -> UInt32[Array, "B T W"]:
    """Returns the tokens that each position's token could be sampled from.

    Args:
      masks: entries of each row; see `rl_sync.sampling_masks`.
    """
    blank = jnp.zeros((row_tokens, word_count(vocab_size) + 1), jnp.uint32)

    def of_row(entries: UInt32[Array, "E 3"]) -> UInt32[Array, "T places"]:
        position, place, word = entries.T
        return blank.at[position.astype(jnp.int32), place].set(word, mode="drop")

    places = constrain(jax.vmap(of_row)(masks), "batch")
    alone, words = places[..., ALONE, None] != 0, places[..., ALONE + 1 :]
    return jnp.where(alone, words, ~words)


def seen_at(
    tokens: Int[Array, "B T"], packing: Packing | None, vocab_size: int
) -> UInt32[Array, "B T W"]:
    """Returns the tokens of each position's sequence up to that position, itself included."""
    blank = jnp.zeros((*tokens.shape, word_count(vocab_size)), jnp.uint32)
    row, position = jnp.indices(tokens.shape)
    own = blank.at[row, position, tokens // WORD_BITS].set(_bit(tokens % WORD_BITS))
    own = constrain(own, "batch")
    if packing is None:
        return _so_far(own, jnp.zeros(tokens.shape, jnp.int32))
    if packing.prompts is None:
        return _so_far(own, packing.attending)
    # The copy of a prompt comes before the completions that share it.
    of_prompt = (packing.trajectories < 0)[..., None]
    prompt = _so_far(jnp.where(of_prompt, own, 0), packing.prompts.copies)
    return prompt | _so_far(jnp.where(of_prompt, 0, own), packing.trajectories)


def _so_far(sets: UInt32[Array, "B T W"], parts: Int[Array, "B T"]) -> UInt32[Array, "B T W"]:
    """Unites each position's set with the sets of earlier positions in the same part of its row."""
    begins = jnp.diff(parts, axis=1, prepend=parts[:, :1] - 1) != 0

    def join(
        earlier: tuple[Bool[Array, "B N 1"], UInt32[Array, "B N W"]],
        later: tuple[Bool[Array, "B N 1"], UInt32[Array, "B N W"]],
    ) -> tuple[Bool[Array, "B N 1"], UInt32[Array, "B N W"]]:
        begun, sets = later
        return earlier[0] | begun, jnp.where(begun, sets, earlier[1] | sets)

    return jax.lax.associative_scan(join, (begins[..., None], sets), axis=1)[1]


def changed_logits(
    logits: Float[Array, "*N v"],
    sets: TokenSets,
    ids: Int[Array, " v"],
    settings: LogprobSettings,
) -> Float[Array, "*N v"]:
    """Changes logits as explorers do before sampling; excluded tokens get `NOTHING`.

    Args:
      ids: vocabulary tokens of the logits.
    """
    if sets.seen is not None:
        penalty = settings.repetition_penalty
        unlikelier = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(holds(sets.seen, ids), unlikelier, logits)
    scaled = logits / settings.temperature
    return scaled if sets.kept is None else jnp.where(holds(sets.kept, ids), scaled, NOTHING)
