"""Encodes prompts with their images: token ids, where the images stand, and tiles of pixels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from rl_sync.images import Image, images_of
from rl_sync.rewards.judgement import Row
from rl_sync.tasks.pictures.places import PLACE, PLACEHOLDER, placed
from rl_sync.tasks.pictures.tile_processor import PictureMarks, TileLayout, TileProcessor, cut
from rl_sync.tasks.tokenizers.prompt_messages import (
    PromptMessages,
    asked_tokens,
    encode_asked,
    is_begun,
    messages_of,
)
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer, completion_tokens

_REMEMBERED_LENGTHS = 1 << 18
TEXT = -1
"""Value of `at` at tokens of text."""


class ExpandedPrompt(NamedTuple):
    """A prompt as tokens, with a token for each feature vector of its images.

    Attributes:
      ids: token ids.
      at: for each token the index tile · M + offset of its feature vector among those of the
        prompt's tiles; -1 at text.
    """

    ids: Int[np.ndarray, " P"]
    at: Int[np.ndarray, " P"]


class PicturedPrompt(NamedTuple):
    """A prompt as tokens, with the tiles of its images.

    Attributes:
      ids, at: see `ExpandedPrompt`.
      tiles: pixels.
      digests: identity of each tile: its image's digest and its number.
    """

    ids: Int[np.ndarray, " P"]
    at: Int[np.ndarray, " P"]
    tiles: UInt8[np.ndarray, "N H W 3"]
    digests: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PromptEncoder:
    """Encoder of prompts, with their images where the policy sees.

    Attributes:
      tokenizer: tokenizer of all texts.
      processor: processing of images; None for a policy that reads text alone. Images are then
        left out.
      placeholder: text that stands for an image in prompts; empty for none.
    """

    tokenizer: Tokenizer
    processor: TileProcessor | None = None
    placeholder: str = PLACEHOLDER

    def length(self, text: str, row: Row | None) -> int:
        """Counts the tokens of a prompt; no image is decoded.

        Args:
          text: the prompt's text.
          row: fields of the prompt's row, which may have images, and the messages of a
            conversation.

        Raises:
          ValueError: an image cannot be read, or has no place in the text.
        """
        if self.processor is None:
            return asked_tokens(self.tokenizer, text, row)
        asked, images = messages_of(row), images_of(row or {})
        key = None if asked is None else asked.key
        return _length(self, self._placed(text, images), self._layouts(images), key)

    def images_length(self, row: Row | None) -> int:
        """Counts the tokens of a row's images alone, without those around them."""
        if self.processor is None:
            return 0
        tiles = sum(one.tiles for one in self._layouts(images_of(row or {})))
        return tiles * self.processor.tile_tokens

    def expanded(self, text: str, row: Row | None) -> ExpandedPrompt:
        """Encodes a prompt; no image is decoded. It raises as `length` does."""
        if self.processor is None:
            ids = np.array(encode_asked(self.tokenizer, text, row), np.int32)
            return ExpandedPrompt(ids, np.full(len(ids), TEXT, np.int32))
        images = images_of(row or {})
        return self._expanded(self._placed(text, images), self._layouts(images), messages_of(row))

    def pictured(self, text: str, row: Row | None) -> PicturedPrompt:
        """Encodes a prompt and decodes its images.

        Raises:
          ValueError: as `length`, or an image is damaged; the message names it.
        """
        assert self.processor is not None, "the policy sees"
        tiles, digests = cut(self.processor, images_of(row or {}))
        ids, at = self.expanded(text, row)
        assert (at >= 0).sum() == len(tiles) * self.processor.tile_tokens, "each tile has a place"
        return PicturedPrompt(ids, at, tiles, digests)

    def completion(self, text: str, row: Row | None) -> list[int]:
        """Encodes a completion to learn, without its end of sequence.

        Args:
          text: the completion's text.
          row: fields of the prompt's row.
        """
        return self.tokenizer.encode_reply(text, continues=is_begun(row), marks=self._marks)

    def completion_length(self, text: str, row: Row | None) -> int:
        """Counts the tokens of a completion to learn, its end of sequence included."""
        return completion_tokens(self.tokenizer, text, is_begun(row), self._marks)

    @property
    def _marks(self) -> PictureMarks | None:
        return None if self.processor is None else self.processor.marks

    def _placed(self, text: str, images: Sequence[Image]) -> str:
        try:
            return placed(text, len(images), self.placeholder)
        except ValueError as error:
            place = images[0].place or f"The prompt {text!r:.200}"
            raise ValueError(f"{place}: {error}") from error

    def _layouts(self, images: Sequence[Image]) -> tuple[TileLayout, ...]:
        assert self.processor is not None, "the policy sees"
        return tuple(self.processor.layout(image.size()) for image in images)

    def _expanded(
        self, text: str, layouts: Sequence[TileLayout], asked: PromptMessages | None
    ) -> ExpandedPrompt:
        processor, tokenizer = self.processor, self.tokenizer
        assert processor is not None, "the policy sees"
        token, size, tile = tokenizer.image_id(processor.marks), processor.tile_tokens, 0
        pictures = []
        for layout in layouts:
            pieces = processor.written(layout)
            pictures.append([one if isinstance(one, str) else tile + one for one in pieces])
            tile += layout.tiles
        ids: list[int] = []
        at: list[int] = []
        texts = text.split(PLACE) if layouts else [text]
        for piece in tokenizer.encode_pictured(texts, pictures, processor.marks, asked):
            if isinstance(piece, int):
                ids += [token] * size
                at += range(piece * size, (piece + 1) * size)
            else:
                ids += piece
                at += [TEXT] * len(piece)
        return ExpandedPrompt(np.array(ids, np.int32), np.array(at, np.int32))


@functools.lru_cache(maxsize=_REMEMBERED_LENGTHS)
def _length(
    encoder: PromptEncoder, text: str, layouts: tuple[TileLayout, ...], key: str | None
) -> int:
    asked = None if key is None else PromptMessages.of_key(key)
    return len(encoder._expanded(text, layouts, asked).ids)
