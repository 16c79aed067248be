"""Images at the tokens of a sequence, by reference: nothing is decoded until it is needed.

Letters in shapes: T tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int

from rl_sync.images import Image
from rl_sync.sequence_images import TEXT, SequenceImages
from rl_sync.tasks.pictures.tile_processor import TileProcessor, cut


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedImages:
    """Images of a token sequence that are not decoded yet.

    Attributes:
      at: see `SequenceImages`.
      images: the images, in the order of their tokens. If the sequence was cut, the last ones may
        have no tokens.
    """

    at: Int[np.ndarray, " T"] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    images: tuple[Image, ...] = ()

    def followed(self, tokens: int, other: PlacedImages | None) -> PlacedImages:
        """Returns the images of a longer sequence: of `tokens` tokens, and then of others."""
        at = np.full(tokens, TEXT, np.int32)
        at[: len(self.at)] = self.at
        if other is None:
            return PlacedImages(at, self.images)
        more = np.where(other.at >= 0, other.at + (at >= 0).sum(), TEXT)
        return PlacedImages(
            np.concatenate([at, more.astype(np.int32)]), (*self.images, *other.images)
        )

    def without_first(self, tokens: int) -> PlacedImages:
        """Returns the images of a sequence without its first tokens, which are text."""
        return PlacedImages(self.at[tokens:], self.images)

    def until(self, tokens: int) -> PlacedImages:
        """Returns the images of the first tokens, after which no image goes on."""
        return PlacedImages(self.at[:tokens], self.images)

    def tiles(self, processor: TileProcessor) -> int:
        """Returns the number of tiles that have tokens."""
        return int((self.at >= 0).sum()) // processor.tile_tokens

    def decoded(self, processor: TileProcessor) -> SequenceImages:
        """Decodes the images that have tokens.

        Raises:
          ValueError: an image is damaged; the message names it.
        """
        count, tiles, shown = self.tiles(processor), 0, list[Image]()
        for image in self.images:
            if tiles == count:
                break
            tiles += processor.layout(image.size()).tiles
            shown.append(image)
        return SequenceImages(self.at, *cut(processor, shown))
