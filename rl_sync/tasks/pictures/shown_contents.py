"""Finds the images of a conversation's messages, and their places in the texts."""

from __future__ import annotations

from typing import Any, NamedTuple

from rl_sync.tasks.dialogues import content_of
from rl_sync.tasks.pictures.places import PLACE, has_images, text_and_images
from rl_sync.tasks.tokenizers.tokenizer import Messages


class ShownContent(NamedTuple):
    """A content with images: its text with `PLACE`, and their values; None for the field's next."""

    text: str
    images: list[Any]


def shown_contents(
    messages: Messages, placeholder: str, count: int, field: str | None
) -> list[ShownContent | None]:
    """Finds the images in the messages of a conversation.

    Images of the row's field stand at parts without an image of their own, and where a text that
    the policy reads has the placeholder; without any place, they stand before the first question.

    Args:
      messages: messages of a row.
      placeholder: text that stands for an image of the field; empty for none.
      count: number of images in the field.
      field: name of the field.

    Returns:
      The contents with images; None for the others.

    Raises:
      ValueError: a part is neither a text nor an image, or the field has another number of images
        than there are places.
    """
    contents = _contents(messages, placeholder if count else "", count > 0)
    return _with_every_image(contents, messages, count, field)


def _contents(messages: Messages, placeholder: str, has_field: bool) -> list[ShownContent | None]:
    """Returns the contents that have images; None for the others.

    Args:
      placeholder: text that stands for an image of the field; empty for none.
      has_field: whether the row has images in a field, which stand at `PLACE` in texts.
    """
    found: list[ShownContent | None] = []
    for number, message in enumerate(messages, start=1):
        is_read, content = message["role"] != "assistant", message.get("content") or ""
        if is_read and has_images(content):
            try:
                made = ShownContent(*text_and_images(content))
            except ValueError as error:
                raise ValueError(f"message {number} {error}") from error
            if made.text.count(PLACE) != len(made.images):
                raise ValueError(f"message {number} has U+FFFC in a text beside images: remove it")
            found.append(made)
            continue
        text = content_of(message) if is_read and has_field else ""
        if placeholder and PLACE not in text:
            text = text.replace(placeholder, PLACE)
        places = text.count(PLACE)
        found.append(ShownContent(text, [None] * places) if places else None)
    return found


def _with_every_image(
    contents: list[ShownContent | None],
    messages: Messages,
    count: int,
    field: str | None,
) -> list[ShownContent | None]:
    """Puts the images of a field before the first question, if the messages have no images.

    Args:
      count: number of images in the field.

    Raises:
      ValueError: the messages have another number of places for images of the field.
    """
    places = sum(one.images.count(None) for one in contents if one is not None)
    users = [number for number, one in enumerate(messages) if one["role"] == "user"]
    if count and users and not any(contents):
        text = PLACE * count + content_of(messages[users[0]])
        contents = list(contents)
        contents[users[0]] = ShownContent(text, [None] * count)
    elif places != count:
        raise ValueError(
            f"has {places} {'place' if places == 1 else 'places'} for images of {field!r}, which"
            f" has {count}: give each image one place, or write no places, for images before the"
            " first question."
        )
    return contents
