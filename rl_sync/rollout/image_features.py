"""Features of tiles for an engine's prefills: each tile is encoded once, and kept up to a limit."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import constrain
from rl_sync.models.vision.projector import Seen
from rl_sync.models.vision.tower import image_features
from rl_sync.rollout.buckets import power_of_two
from rl_sync.sequence_images import SequenceImages, pooled
from rl_sync.types import Params, as_input

MOST_TILES = 16
"""Maximum number of tiles that are encoded at once."""


Encode = Callable[[UInt8[np.ndarray, "N S S 3"]], Float[Array, "N M W"]]


@functools.partial(jax.jit, static_argnames="config")
def encoded(
    config: ModelConfig, params: Params, tiles: UInt8[Array, "N S S 3"]
) -> Float[Array, "N M W"]:
    """Encodes tiles; every process's host reads the features."""
    return constrain(image_features(config, params, tiles))


class ShownPrompts(NamedTuple):
    """Images of a prefill.

    Attributes:
      tiles: number of tiles that each row has room for.
      seen: features of all tiles, and the tokens that stand for them; on the host.
    """

    tiles: int
    seen: Seen


class ImageFeatures:
    """Features by the digests of tiles; the least recently used are dropped.

    Args:
      encode: computes features of up to `MOST_TILES` tiles, of which the last may be padding.
      most_bytes: maximum size of the features that are kept.

    Attributes:
      encoded: number of tiles encoded so far.
    """

    def __init__(self, encode: Encode, most_bytes: int) -> None:
        self._encode, self._most = encode, most_bytes
        self._kept: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._bytes = 0
        self.encoded = 0

    def forget(self) -> None:
        """Drops all features, since the tower has changed."""
        self._kept.clear()
        self._bytes = 0

    def of_tiles(
        self, digests: Sequence[str], tiles: UInt8[np.ndarray, "N S S 3"]
    ) -> Float[np.ndarray, "N M W"]:
        """Returns the features of tiles, given their digests."""
        found = {digest: self._kept[digest] for digest in digests if digest in self._kept}
        lacking = [n for n, digest in enumerate(digests) if digest not in found]
        for start in range(0, len(lacking), MOST_TILES):
            some = lacking[start : start + MOST_TILES]
            padding = np.zeros((power_of_two(len(some)) - len(some), *tiles.shape[1:]), np.uint8)
            features = np.asarray(self._encode(np.concatenate([tiles[some], padding])))
            self.encoded += len(some)
            found |= {digests[n]: features[i] for i, n in enumerate(some)}
        for digest in digests:
            self._keep(digest, found[digest])
        return np.stack([found[digest] for digest in digests])

    def _keep(self, digest: str, features: np.ndarray) -> None:
        if digest not in self._kept:
            self._kept[digest] = features.copy()  # Not a view of the features of other tiles.
            self._bytes += features.nbytes
        self._kept.move_to_end(digest)
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes

    def shown(
        self,
        config: ModelConfig,
        rows: Sequence[SequenceImages | None],
        shape: tuple[int, int],
    ) -> ShownPrompts | None:
        """Returns the images of a prefill; None if there are none.

        Args:
          rows: images of its first rows.
          shape: number of its rows, and of the positions of each.
        """
        assert config.vision is not None
        images = pooled(rows, config.vision.tile_tokens, shape[1])
        if images is None:
            return None
        most = power_of_two(max(len(one.digests) for one in rows if one is not None))
        vision = config.vision
        size = most * shape[0], vision.tile_tokens, vision.feature_width
        features = np.zeros(size, jnp.dtype(config.dtype))
        features[: len(images.digests)] = self.of_tiles(images.digests, images.tiles)
        at = np.full(shape, -1, np.int32)
        at[: len(rows)] = images.at
        return ShownPrompts(most, Seen(as_input(features), as_input(at)))


def abstract_seen(config: ModelConfig, rows: int, positions: int, tiles: int) -> Seen:
    """Returns the shapes of a prefill's images, with room for `tiles` tiles a row."""
    vision = config.vision
    assert vision is not None
    shape = (tiles * rows, vision.tile_tokens, vision.feature_width)
    features = jax.ShapeDtypeStruct(shape, config.dtype)
    at = jax.ShapeDtypeStruct((rows, positions), np.int32)
    return Seen(as_input(features), as_input(at))


def blank_tiles(config: ModelConfig, count: int) -> UInt8[np.ndarray, "N S S 3"]:
    """Returns tiles without content."""
    assert config.vision is not None
    side = config.vision.image_size
    return np.zeros((count, side, side, 3), np.uint8)


def tile_buckets(most: int) -> list[int]:
    """Lists the numbers of tiles that programs exist for, up to `most` tiles."""
    return [1 << power for power in range(power_of_two(most).bit_length())] if most else []
