"""Cuts images into tiles of pixels, and says which tokens stand for them in a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import UInt8

from rl_sync.image_files import Size
from rl_sync.images import Image


class TileLayout(NamedTuple):
    """Tiles of one image: a grid of parts, then the whole image as the last tile.

    Attributes:
      rows, columns: parts of the grid; 0 if the whole image is the only tile.
    """

    rows: int = 0
    columns: int = 0

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.rows * self.columns + 1


class PictureMarks(NamedTuple):
    """Tokens of images in a model's vocabulary.

    Attributes:
      token: name of the token that stands for a tile, once for each of its feature vectors.
      template: text that chat templates write for an image.
      names: regular expression for the names of all tokens of images. In a user's text, these
        names are plain text.
    """

    token: str
    template: str
    names: str


class TileProcessor(Hashable, Protocol):
    """Processing of images for one model."""

    @property
    def tile_tokens(self) -> int:
        """Number of tokens of a tile, M."""

    @property
    def tile_size(self) -> int:
        """Side of a tile, in pixels."""

    @property
    def marks(self) -> PictureMarks | None:
        """Tokens of images in a pretrained vocabulary; None for models without one."""

    def layout(self, size: Size) -> TileLayout:
        """Returns the tiles of an image, which its size alone decides."""

    def written(self, layout: TileLayout) -> Sequence[str | int]:
        """Returns the texts around the tiles of an image, and the tiles' numbers, in order."""

    def tiles(self, image: Image) -> UInt8[np.ndarray, "N H W 3"]:
        """Returns the pixels of the tiles.

        Raises:
          ValueError: the image cannot be read; the message names it.
        """


def cut(
    processor: TileProcessor, images: Sequence[Image]
) -> tuple[UInt8[np.ndarray, "N H W 3"], tuple[str, ...]]:
    """Cuts images into tiles; returns their pixels and digests, image after image.

    Raises:
      ValueError: an image cannot be read or is damaged; the message names it.
    """
    side = processor.tile_size
    tiles = [processor.tiles(image) for image in images]
    digests = [
        f"{image.digest}:{number}"
        for image, of in zip(images, tiles, strict=True)
        for number in range(len(of))
    ]
    return np.concatenate([np.zeros((0, side, side, 3), np.uint8), *tiles]), tuple(digests)


@dataclasses.dataclass(frozen=True)
class SquareTiles:
    """Processing of images for models of our own: each image is one square tile.

    An image of another size is resized bilinearly, whatever its shape.

    Attributes:
      tile_size: side of a tile, in pixels.
      tile_tokens: number of tokens of a tile, M.
      marks: tokens of images in a pretrained vocabulary; None for a character tokenizer, which has
        an id for images, and no name for it.
    """

    tile_size: int
    tile_tokens: int
    marks: PictureMarks | None = None

    def layout(self, size: Size) -> TileLayout:
        """Returns one tile."""
        del size
        return TileLayout()

    def written(self, layout: TileLayout) -> Sequence[str | int]:
        """Returns the only tile, with no text around it."""
        del layout
        return (0,)

    def tiles(self, image: Image) -> UInt8[np.ndarray, "N H W 3"]:
        """Returns the pixels of the tile."""
        import PIL.Image

        pixels, side = image.pixels(), self.tile_size
        if pixels.shape[:2] != (side, side):
            whole = PIL.Image.fromarray(pixels)
            pixels = np.asarray(whole.resize((side, side), PIL.Image.Resampling.BILINEAR))
        return pixels[None]
