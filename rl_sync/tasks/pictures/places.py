"""Finds the places of images in texts and in chat messages."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.images import images_of
from rl_sync.rewards.judgement import Row

PLACE = "\ufffc"
"""Character in a prompt's text where an image stands: Unicode's object replacement character."""

PLACEHOLDER = "<image>"

_RESERVED = range(0xFDD0, 0xFDF0)
_IMAGE_PARTS = ("image", "image_url", "input_image")


def placed(text: str, images: int, placeholder: str = PLACEHOLDER) -> str:
    """Marks the places of a prompt's images with `PLACE`.

    Images stand where the text has `PLACE`; if it has none, where it has the placeholder; otherwise
    before the text. A text without images is returned as it is.

    Args:
      text: the prompt.
      images: number of its images.
      placeholder: text that stands for an image; empty for none.

    Raises:
      ValueError: the numbers of places and images differ.
    """
    if not images:
        return text
    named = repr(placeholder)
    if PLACE in text:
        places, named = text.count(PLACE), "parts or U+FFFC"
    elif placeholder and placeholder in text:
        places, text = text.count(placeholder), text.replace(placeholder, PLACE)
    else:
        places, text = images, PLACE * images + text
    if places != images:
        raise ValueError(
            f"the prompt has {places} {'place' if places == 1 else 'places'} for images ({named}),"
            f" and the row has {images} {'image' if images == 1 else 'images'}: give each image one"
            " place, or write no places, for images before the text."
        )
    return text


def row_with_places(row: Row, placeholder: str) -> Row:
    """Marks the places of a row's images in its `prompt` with `PLACE`, if it has placeholders.

    Args:
      row: fields of a row.
      placeholder: text that stands for an image; empty for none.
    """
    text = row.get("prompt")
    if not (placeholder and isinstance(text, str) and placeholder in text and images_of(row)):
        return row
    return row if PLACE in text else {**row, "prompt": text.replace(placeholder, PLACE)}


def joined(texts: Sequence[str], pictures: Sequence[Sequence[str | int]]) -> list[str | int]:
    """Puts images between texts, and joins texts that meet; empty ones are left out."""
    pieces: list[str | int] = []
    around = [[text] for text in texts]
    for piece in itertools.chain(*itertools.chain(*zip(around, [*pictures, ()], strict=True))):
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        elif piece != "":
            pieces.append(piece)
    return pieces


def unused_character(texts: Sequence[str]) -> str:
    """Returns a character that no text has, out of those that Unicode reserves for programs.

    Raises:
      ValueError: the texts have all of them.
    """
    for character in map(chr, _RESERVED):
        if not any(character in text for text in texts):
            return character
    raise ValueError("The text has all of U+FDD0 to U+FDEF, which are no characters: remove them.")


def has_images(content: object) -> bool:
    """Says whether a message's content is a list of parts with an image."""
    return isinstance(content, list) and any(map(_is_image, content))


def text_and_images(content: Sequence[Any]) -> tuple[str, list[Any]]:
    """Reads the parts of a message: the text with `PLACE` at images, and the images' values.

    The value of a part that has no image of its own, as `{"type": "image"}`, is None.

    Raises:
      ValueError: a part is neither a text nor an image.
    """
    texts, values = [], []
    for part in content:
        if _is_image(part):
            texts.append(PLACE)
            given = any(part.get(name) for name in ("image_url", "image", "url", "path", "bytes"))
            values.append(part if given else None)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ValueError(f"has the part {part!r:.200}, which must be a text or an image")
    return "".join(texts), values


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _IMAGE_PARTS
