"""Speculative decoding: tokens are drafted by looking them up, and verified token for token.

The token of a position is a function of the weights, of the tokens before it, and of the random
numbers of the position. So a draft needs no correction of probabilities (Fast Inference from
Transformers via Speculative Decoding, arXiv:2211.17192): a drafted token is kept if it is the one
that is drawn at its position, and the tokens are those of decoding one by one.

Drafts are tokens that followed the last tokens of a sequence before: in the sequence itself (prompt
lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding), or in references, which
are other completions of the same prompt.

Letters in shapes: B rows, W tokens of a text, D drafted tokens, T fed tokens: D + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

NO_TOKEN = -1
"""Separates the sequences of a text."""
MATCHED_TOKENS = 4
"""Number of last tokens that are compared; more of them decide nothing."""


class Drafts(NamedTuple):
    """Tokens that may follow each row's newest token.

    Attributes:
      tokens: the tokens; those after the first `counts` have no meaning.
      counts: number of drafted tokens of each row.
    """

    tokens: Int[Array, "B D"]
    counts: Int[Array, " B"]

    def at_most(self, limits: Int[Array, " B"]) -> Drafts:
        """Shortens drafts to limits, which may be negative for rows without a draft."""
        return self._replace(counts=jnp.clip(self.counts, 0, jnp.maximum(limits, 0)))


class Text(NamedTuple):
    """References, and behind them each row's own tokens.

    Attributes:
      tokens: the tokens, with `NO_TOKEN` behind each reference; those after `newest` have no
        meaning.
      own: index of the first own token.
      newest: index of the newest token.
    """

    tokens: Int[Array, "B W"]
    own: int
    newest: Int[Array, " B"]

    @classmethod
    def of(
        cls,
        references: Int[Array, "B E"] | None,
        tokens: Int[Array, "B S"],
        newest: Int[Array, " B"],
    ) -> Text:
        """Joins references, if there are any, and own tokens, whose newest is at `newest`."""
        if references is None:
            return cls(tokens, 0, newest)
        width = references.shape[1]
        return cls(jnp.concatenate([references, tokens], axis=1), width, newest + width)

    def at(self, indices: Int[Array, "B N"]) -> Int[Array, "B N"]:
        """Returns tokens by their indices, and `NO_TOKEN` after the newest."""
        found = jnp.take_along_axis(self.tokens, indices, axis=1, mode="clip")
        return jnp.where(indices <= self.newest[:, None], found, NO_TOKEN)


def looked_up(text: Text, count: int) -> Drafts:
    """Drafts up to `count` tokens: those that followed the longest match of a row's last tokens.

    Of several such matches the last in the text decides, so own tokens come before references. If
    own tokens end before the draft does, they are taken to go on in the same period.
    """
    where = _matched(text)[:, None]
    ahead = jnp.arange(count)
    period = jnp.maximum(text.newest[:, None] - where, 1)
    indices = where + 1 + jnp.where(where >= text.own, ahead % period, ahead)
    tokens = text.at(indices)
    is_draft = (where >= 0) & (jnp.cumsum(tokens == NO_TOKEN, axis=1) == 0)
    return Drafts(tokens, is_draft.sum(axis=1))


def _matched(text: Text) -> Int[Array, " B"]:
    """Returns the index of the last token of the longest match; −1 if there is none."""
    width = text.tokens.shape[1]
    indices = jnp.arange(width)
    matches, length = (indices < text.newest[:, None]), jnp.int32(0)
    for back in range(MATCHED_TOKENS):
        place = text.newest[:, None] - back
        last = jnp.where(place >= text.own, text.at(place), NO_TOKEN)
        shifted = jnp.pad(text.tokens, ((0, 0), (back, 0)), constant_values=NO_TOKEN)[:, :width]
        matches &= (shifted == last) & (last != NO_TOKEN)
        length += matches
    best = (length * width + indices).max(axis=1)
    return jnp.where(best >= width, best % width, -1)


def verified(
    fed: Int[Array, "B T"],
    drawn: Int[Array, "B T"],
    draws: Bool[Array, "B T"],
    ended: Bool[Array, "B T"],
    is_fed: Bool[Array, "B T"],
) -> Bool[Array, "B T"]:
    """Says which fed tokens are part of their sequences.

    The first one is. Another one is if all before it are, none of them ended the sequence, and it
    is the token that was drawn for its position, or one of the prompt.

    Args:
      fed: tokens that were fed to the model, at consecutive positions.
      drawn: tokens that were drawn to follow each of them.
      draws: False where a token of the prompt follows instead.
      ended: whether the drawn token ends the sequence.
      is_fed: False for entries that were not fed.
    """
    is_right = ~draws[:, :-1] | (drawn[:, :-1] == fed[:, 1:])
    follows = is_fed[:, 1:] & is_right & ~ended[:, :-1]
    return jnp.cumsum(~jnp.concatenate([is_fed[:, :1], follows], axis=1), axis=1) == 0
