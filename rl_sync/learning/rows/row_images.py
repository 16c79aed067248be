"""Images of a batch: the tiles of its groups, and the tokens of its rows that stand for them.

Rows are computed part by part: updates, and microbatches of an update. Each part has its own tiles,
each once, however many rows show it, and equally many places for them.

Letters in shapes: B rows, T positions, N tiles, S side of a tile, M tokens of a tile, W width of
their features, G trajectories of P positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8

from rl_sync.models.vision.vision_config import Vision
from rl_sync.sequence_images import TEXT
from rl_sync.types import Group, RowImages, as_input

Tiles = UInt8[np.ndarray, "N S S 3"] | Float[np.ndarray, "N M W"]
"""Pixels of tiles, or their features."""


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Tiles of several groups, each once.

    Attributes:
      tiles: pixels, or features.
      at: for each trajectory the index of each token's features, M · tile + offset; -1 at text.
    """

    tiles: Tiles
    at: Int[np.ndarray, "G P"]


def gallery(vision: Vision, groups: Sequence[Group], positions: int) -> Gallery:
    """Collects the images of groups.

    Args:
      positions: number of positions of a trajectory.
    """
    side, each = vision.image_size, vision.tile_tokens
    numbers: dict[bytes, int] = {}
    tiles: list[np.ndarray] = []
    parts = []
    for group in groups:
        at = np.full((len(group.tokens), positions), TEXT, np.int32)
        if group.image_at is not None and group.tiles is not None:
            assert group.tile_digests is not None
            own = np.zeros(len(group.tiles), np.int32)
            for number, digest in enumerate(group.tile_digests):
                key = digest.tobytes()
                if key not in numbers:
                    numbers[key] = len(tiles)
                    tiles.append(group.tiles[number])
                own[number] = numbers[key]
            shown = group.image_at
            tile, offset = np.divmod(np.maximum(shown, 0), each)
            at[:, : shown.shape[1]] = np.where(shown >= 0, own[tile] * each + offset, TEXT)
        parts.append(at)
    found = np.stack(tiles) if tiles else np.zeros((0, side, side, 3), np.uint8)
    return Gallery(found, np.concatenate(parts))


def in_parts(
    vision: Vision,
    tiles: Tiles,
    at: Int[np.ndarray, "B T"],
    parts: int,
    shards: int = 1,
) -> RowImages | None:
    """Gives each part of a batch's rows its own tiles; None if no row shows any.

    Args:
      at: index in `tiles` of each token's features, in the rows of the batch.
      parts: number of parts, of equally many rows.
      shards: number of devices that share the tiles of a part.
    """
    if not (at >= 0).any():
        return None
    each = vision.tile_tokens
    of_parts = at.reshape(parts, -1)
    used = [np.unique(part[part >= 0] // each) for part in of_parts]
    places = tile_places(max(map(len, used)), shards)
    shown = np.zeros((parts, places, *tiles.shape[1:]), tiles.dtype)
    local = np.full_like(of_parts, TEXT)
    for number, (part, some) in enumerate(zip(of_parts, used, strict=True)):
        shown[number, : len(some)] = tiles[some]
        new = np.zeros(len(tiles), np.int32)
        new[some] = np.arange(len(some))
        tile, offset = np.divmod(np.maximum(part, 0), each)
        local[number] = np.where(part >= 0, new[tile] * each + offset, TEXT)
    return RowImages(
        as_input(shown.reshape(-1, *tiles.shape[1:])), as_input(local.reshape(at.shape))
    )


def tile_places(tiles: int, shards: int = 1) -> int:
    """Returns the number of places for tiles of a part: 1, 2, 3, 4, 6, 8, 12 … for each device.

    Args:
      shards: number of devices that share the tiles, equally many each.
    """
    own = -(-tiles // shards)
    power = 1 << (own - 1).bit_length()
    return shards * (power * 3 // 4 if power >= 4 and own <= power * 3 // 4 else power)
