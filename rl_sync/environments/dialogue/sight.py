"""A policy's sight: tokens of the images in a conversation, and their tiles of pixels.

Images get their tokens by their sizes alone, so that limits count before anything is decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.images import MOST_PIXELS, Image
from rl_sync.sequence_images import SequenceImages
from rl_sync.tasks.pictures.placed_images import PlacedImages
from rl_sync.tasks.pictures.places import joined
from rl_sync.tasks.pictures.tile_processor import TileProcessor


@dataclasses.dataclass(frozen=True)
class Sight:
    """The way in which a policy sees images.

    Attributes:
      processor: processing of images.
      token: id of the token that stands for a part of an image.
      most_pixels: number of pixels beyond which an image is refused, without decoding it.
    """

    processor: TileProcessor
    token: int
    most_pixels: int = MOST_PIXELS

    def bounded(self, images: Sequence[Image]) -> tuple[Image, ...]:
        """Returns images with the bound on their pixels."""
        return tuple(dataclasses.replace(one, most_pixels=self.most_pixels) for one in images)

    def pieces(self, texts: Sequence[str], images: Sequence[Image]) -> list[str | range]:
        """Puts the tiles of images between texts, each as the range of its values of `at`.

        Args:
          texts: texts around the images, one more than there are images.

        Raises:
          ValueError: an image's file is none, or it has too many pixels.
        """
        size, first = self.processor.tile_tokens, 0
        pictures = []
        for image in self.bounded(images):
            layout = self.processor.layout(image.size())
            written = self.processor.written(layout)
            pictures.append([one if isinstance(one, str) else first + one for one in written])
            first += layout.tiles
        return [
            one if isinstance(one, str) else range(one * size, (one + 1) * size)
            for one in joined(texts, pictures)
        ]

    def decoded(self, placed: PlacedImages) -> SequenceImages:
        """Decodes images.

        Raises:
          ValueError: an image is damaged; the message names it.
        """
        return placed.decoded(self.processor)
