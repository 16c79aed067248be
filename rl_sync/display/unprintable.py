"""Characters that a terminal or a page cannot show as they are."""

from __future__ import annotations

import re

# Control characters except tab and line breaks, surrogates, private use, and U+FFFD, which replaces
# bytes that are not text. Letters and signs of all languages pass.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ue000-\uf8ff\ufffd]")
# In a terminal, also characters that reverse the direction of text or have no width.
_ESCAPED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ue000-\uf8ff]"
)


def has_unprintable(text: str) -> bool:
    """Says whether a text has characters that cannot be printed."""
    return _UNPRINTABLE.search(text) is not None


def escaped(text: str) -> str:
    """Writes characters that would disturb a terminal as escapes, such as `\\x1b`."""
    return _ESCAPED.sub(lambda match: repr(match[0])[1:-1], text)
