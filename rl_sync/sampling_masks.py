"""Sampling masks: the set of tokens that each token could be sampled from, stored compactly.

A set is a bit field: bit b of word w stands for token 32·w + b of the vocabulary. A mask is a list
of entries (position, place, word): for the position of each sampled token, the words that are not
0, where word w has the place w + 1. The words name the tokens that could not be sampled. If it
takes fewer entries to name the tokens that could be sampled, the words name these instead, and an
entry at the place `ALONE` marks that. A position without entries was sampled from the whole
vocabulary. So a nucleus of ten tokens takes at most eleven entries of 12 bytes, whatever the
vocabulary, and no set takes more entries than the vocabulary has words.

Letters in shapes: T tokens, W words of the vocabulary, E entries, N trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt32

WORD_BITS = 32
ALONE = 0
"""Place that marks a position whose words name the tokens that could be sampled."""
NOWHERE = 2**31 - 1
"""Position of padding entries, which lies beyond all tokens."""
Entries = UInt32[np.ndarray, "E 3"]


def word_count(vocab_size: int) -> int:
    """Returns the number of words of a vocabulary."""
    return -(-vocab_size // WORD_BITS)


def no_entries() -> Entries:
    """Returns the mask of tokens that were all sampled from the whole vocabulary."""
    return np.zeros((0, 3), np.uint32)


def of_words(kept: UInt32[np.ndarray, "T W"], vocab_size: int) -> Entries:
    """Makes the entries of T tokens from bit fields of the tokens that could be sampled."""
    every = np.full(kept.shape[1], ~np.uint32(0))
    if rest := vocab_size % WORD_BITS:
        every[-1] = (1 << rest) - 1
    left_out = ~kept & every
    counts = np.count_nonzero(kept, axis=1), np.count_nonzero(left_out, axis=1)
    (alone,) = np.nonzero(counts[0] + 1 < counts[1])
    left_out[alone] = kept[alone]
    at, word = np.nonzero(left_out)
    flags = np.stack([alone, np.full_like(alone, ALONE), np.ones_like(alone)], axis=1)
    entries = np.stack([at, word + 1, left_out[at, word]], axis=1)
    return np.concatenate([flags, entries]).astype(np.uint32)


def shifted(entries: Entries, by: int) -> Entries:
    """Moves entries to later positions."""
    return entries + np.array([by, 0, 0], np.uint32)


def before(entries: Entries, end: int) -> Entries:
    """Returns the entries of the tokens before a position."""
    return entries[entries[:, 0] < end]


def padded(masks: Sequence[Entries], size: int = 0) -> UInt32[np.ndarray, "N E 3"]:
    """Stacks the masks of trajectories into one array.

    Args:
      size: minimum number of entries of each mask.
    """
    longest = max([size, *map(len, masks)])
    rows = np.zeros((len(masks), longest, 3), np.uint32)
    rows[..., 0] = NOWHERE
    for row, entries in zip(rows, masks, strict=True):
        row[: len(entries)] = entries
    return rows
