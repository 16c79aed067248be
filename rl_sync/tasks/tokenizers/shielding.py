"""Keeps names of special tokens in contents apart from a chat template's special tokens.

A tool may answer with the text `<|im_end|>`. In the rendered conversation it would look like the
end of the turn. So each name in a content is covered by a mark before the template sees it, and
uncovered only where it is encoded as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_OPEN = "\U000f0000"
_CLOSE = "\U000f0001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Shield:
    """Covers names in texts, and uncovers them.

    Covering the same text twice gives the same text, so covered texts can be compared.

    Args:
      names: the names to cover, longer ones before those that they contain.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        # A text may hold the character that opens a mark: it is covered like a name.
        self._names = (_OPEN, *names)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._pattern = re.compile("|".join(map(re.escape, self._names)))

    def cover(self, value: Any) -> Any:
        """Covers the names in a text, or in all texts of a JSON value."""
        if isinstance(value, str):
            return self._pattern.sub(self._mark, value)
        if isinstance(value, Mapping):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item) for item in value]
        return value

    def uncover(self, text: str) -> str:
        """Returns the text that was covered."""
        return _MARK.sub(lambda mark: self._names[int(mark[1])], text)

    def covers(self, text: str) -> bool:
        """Says whether a covered text contains a name."""
        return _OPEN in text

    def _mark(self, name: re.Match[str]) -> str:
        return f"{_OPEN}{self._numbers[name[0]]}{_CLOSE}"
