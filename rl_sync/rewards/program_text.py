"""The program in a completion."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)


def program_text(text: str, names: tuple[str, ...], whole: bool) -> str | None:
    """Returns the last code block of a language or, if there is none, the last without a language.

    An unclosed block at the end of the text counts.

    Args:
      text: the completion.
      names: names of the language, in lower case.
      whole: whether a text without code blocks counts as a program.

    Returns:
      The program; None if there is none.
    """
    blocks = code_blocks(text)
    for wanted in (names, ("",)):
        for name, content in reversed(blocks):
            if name.lower() in wanted:
                return content
    return text if whole and not blocks else None


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Returns the code blocks of a text, as pairs of the language's name and the content."""
    blocks, opened = [], None
    for match in _FENCE.finditer(text):
        marker, name = match.groups()
        if opened is None:
            opened = match
        elif not name and marker.startswith(opened[1]):
            blocks.append((opened[2], text[opened.end() + 1 : match.start()]))
            opened = None
    if opened is not None:
        blocks.append((opened[2], text[opened.end() + 1 :]))
    return blocks
