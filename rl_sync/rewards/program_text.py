"""The program in a completion."""

from __future__ import annotations

import re

_FENCE = re.compile(
    r"^(?P<before>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<marker>`{3,}|~{3,})[ \t]*"
    r"(?P<name>[\w+#.-]*)[^\n]*$",
    re.MULTILINE,
)
"""A fence, which may stand in a list or in a quotation."""
_QUOTED = re.compile(r"(?:[ \t]*>)+ ?")
_DEEPEST = 3
"""The most spaces before a closing fence, beyond those before the opening one."""


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
        if opened is None:
            opened = match
        elif _closes(match, opened):
            blocks.append(_block(opened, text[opened.end() + 1 : match.start()]))
            opened = None
    if opened is not None:
        blocks.append(_block(opened, text[opened.end() + 1 :]))
    return blocks


def _closes(match: re.Match[str], opened: re.Match[str]) -> bool:
    indent = len(match["before"].expandtabs(4))
    return (
        not match["name"]
        and match["marker"].startswith(opened["marker"])
        and not match["before"].strip(" \t>")
        and indent <= len(opened["before"].expandtabs(4)) + _DEEPEST
    )


def _block(opened: re.Match[str], content: str) -> tuple[str, str]:
    """Returns a block without its fence's indentation and marks of quotation."""
    before, lines = opened["before"], content.split("\n")
    if ">" in before:
        before, *lines = (_QUOTED.sub("", line, count=1) for line in (before, *lines))
    margins = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    margin = min([len(before), *margins])
    return opened["name"], "\n".join(line[margin:] if line.strip() else line for line in lines)
