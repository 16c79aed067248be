"""Excerpts of long texts, so that no reply waits for the tokenization of a huge text."""

from __future__ import annotations

import dataclasses

from rl_sync.environments.interface import Message, Turn
from rl_sync.tasks.pictures.places import PLACE

MARK = "\n[{} characters left out]\n"
"""Replaces the omitted text; `{}` is the number of its characters."""


def excerpt(text: str, most: int, mark: str = MARK) -> str:
    """Leaves out the middle of a text that has too many characters.

    Args:
      most: maximum number of characters of what is returned, unless the mark alone has more.
      mark: replacement of the middle; see `MARK`.
    """
    return text if len(text) <= most else "".join(_around(text, most, mark))


def _around(text: str, most: int, mark: str) -> tuple[str, str, str]:
    """Returns the beginning of a text, the mark of the omitted middle, and the end."""
    if len(text) <= most:
        return text, "", ""
    # The mark tells at most as many characters as the text has.
    kept = max(0, most - len(mark.format(len(text))))
    first, last = kept - kept // 2, kept // 2
    return text[:first], mark.format(len(text) - kept), text[len(text) - last :]


def shortened(turn: Turn, most: int, *, cuts: bool, mark: str = MARK) -> Turn:
    """Returns a turn none of whose messages has too many characters.

    Args:
      most: maximum number of characters of a message.
      cuts: whether the middle of a longer message is left out.
      mark: see `excerpt`.

    Raises:
      ValueError: a message is longer and must not be cut.
    """
    longest = max(len(message.content) for message in turn.messages)
    if longest <= most:
        return turn
    if not cuts:
        raise ValueError(
            f"A message has {longest:,} characters, more than environment.observation_chars={most}"
            " allows: say less, raise it, or use environment.long_observations=cut."
        )
    return dataclasses.replace(
        turn, messages=tuple(_cut(message, most, mark) for message in turn.messages)
    )


def characters(turn: Turn) -> int:
    """Counts the characters of a turn's messages, and of the calls in them."""
    return sum(
        len(message.content) + sum(len(str(call.arguments)) for call in message.tool_calls)
        for message in turn.messages
    )


def _cut(message: Message, most: int, mark: str) -> Message:
    first, gap, last = _around(message.content, most, mark)
    images = message.images
    if images:  # Those of the middle are left out with it.
        count = len(images)
        images = images[: first.count(PLACE)] + images[count - last.count(PLACE) :]
    return dataclasses.replace(message, content=f"{first}{gap}{last}", images=images)
