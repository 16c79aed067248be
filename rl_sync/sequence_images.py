"""Images of a token sequence: pixels of their tiles, and the tokens that stand for them.

An image is cut into tiles, and each tile stands in the sequence as M contiguous tokens. Where they
are is said by an index for each token, never by the token's id.

Letters in shapes: P tokens, N tiles, S side of a tile in pixels, R rows, T positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

TEXT = -1
"""Value of `SequenceImages.at` at tokens of text."""


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceImages:
    """Images of a sequence, as tiles.

    Attributes:
      at: for each token the index of its features, M · tile + offset in the tile; `TEXT` at text.
        Tokens after its end are text.
      tiles: pixels.
      digests: identity of each tile: equal digests mean equal pixels.

    Raises:
      ValueError: the numbers of tiles, digests and tokens contradict each other.
    """

    at: Int[np.ndarray, " P"]
    tiles: UInt8[np.ndarray, "N S S 3"]
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens = int((self.at >= 0).sum())
        if len(self.tiles) != len(self.digests) or (tokens and not self.digests):
            raise ValueError(
                f"{len(self.tiles)} tiles have {len(self.digests)} digests and {tokens} tokens:"
                " each tile needs one digest, and as many tokens as the others."
            )

    def over(self, tokens: int) -> Int[np.ndarray, " tokens"]:
        """Returns `at` for a sequence of so many tokens; those after its end are text."""
        found = np.full(tokens, TEXT, np.int32)
        found[: len(self.at)] = self.at[:tokens]
        return found

    def followed(self, tokens: int, other: SequenceImages | None) -> SequenceImages:
        """Returns the images of a longer sequence.

        Args:
          tokens: number of tokens of this sequence.
          other: images of the tokens that follow.
        """
        at = self.over(tokens)
        if other is None:
            return dataclasses.replace(self, at=at)
        mine = int((at >= 0).sum())
        more = np.where(other.at >= 0, other.at + mine, TEXT).astype(np.int32)
        return SequenceImages(
            np.concatenate([at, more]),
            np.concatenate([self.tiles, other.tiles]) if len(self.tiles) else other.tiles,
            (*self.digests, *other.digests),
        )

    def within(self, start: int, stop: int) -> tuple[str, ...]:
        """Returns the digests of tiles that have a token from position `start` to `stop`."""
        some = self.at[start:stop]
        some = some[some >= 0]
        if not len(some):
            return ()
        each = self.tile_tokens
        return self.digests[some[0] // each : some[-1] // each + 1]

    @property
    def tile_tokens(self) -> int:
        """Number of tokens of a tile, M."""
        return int((self.at >= 0).sum()) // len(self.digests)


def after(
    before: SequenceImages | None, tokens: int, more: SequenceImages | None
) -> SequenceImages | None:
    """Returns the images of a sequence of `tokens` tokens that is followed by others."""
    if before is not None:
        return before.followed(tokens, more)
    if more is None:
        return None
    return SequenceImages(np.full(0, TEXT, np.int32), more.tiles[:0], ()).followed(tokens, more)


def alike(one: SequenceImages | None, other: SequenceImages | None) -> bool:
    """Says whether two sequences show equal images at the same tokens."""
    if one is None or other is None:
        return one is other
    return one.digests == other.digests and np.array_equal(one.at, other.at)


class PooledImages(NamedTuple):
    """Images of several sequences, with each tile once.

    Attributes:
      at: for each sequence, the index of each token's features among those of all tiles.
      tiles: pixels.
      digests: identity of each tile.
    """

    at: Int[np.ndarray, "R T"]
    tiles: UInt8[np.ndarray, "N S S 3"]
    digests: tuple[str, ...]


def pooled(
    sequences: Sequence[SequenceImages | None], tile_tokens: int, positions: int
) -> PooledImages | None:
    """Collects the images of sequences; None if there are none.

    Args:
      tile_tokens: number of tokens of a tile.
      positions: number of tokens of each row of the result.
    """
    shown = [images for images in sequences if images is not None and images.digests]
    if not shown:
        return None
    digests = dict.fromkeys(digest for images in shown for digest in images.digests)
    numbers = {digest: number for number, digest in enumerate(digests)}
    tiles = np.zeros((len(numbers), *shown[0].tiles.shape[1:]), np.uint8)
    at = np.full((len(sequences), positions), TEXT, np.int32)
    for row, images in zip(at, sequences, strict=True):
        if images is None or not images.digests:
            continue
        into = np.array([numbers[digest] for digest in images.digests], np.int32)
        tiles[into] = images.tiles
        own = images.over(positions)
        tile, offset = np.divmod(np.maximum(own, 0), tile_tokens)
        row[:] = np.where(own >= 0, into[tile] * tile_tokens + offset, TEXT)
    return PooledImages(at, tiles, tuple(numbers))
