"""Extraction of the final answer from a completion, by strategies that are tried in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_sync.spelling import require_one_of


class Extracted(NamedTuple):
    """An answer found in a text.

    Attributes:
      text: the answer, without white space around.
      strategy: the name of the strategy that found it.
    """

    text: str
    strategy: str


class _Strategy(NamedTuple):
    """A way to find the answer.

    Attributes:
      find: returns the last answer of a text, or None.
      is_closed: whether the notation marks the end of the answer, so that a truncated completion
        cannot have cut it.
    """

    find: Callable[[str], str | None]
    is_closed: bool


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_TAGS = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_ANSWER_IS = re.compile(
    r"\banswer\b[ \t]*\*{0,2}[ \t]*(?:is|are|was|equals|would be|:|=)[ \t]*:?[ \t]*\*{0,2}\s*",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|\*|$)|\s(?:because|since|which)\s", re.IGNORECASE)
_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_PLAIN = r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?<![)\]}\w])[-−+])?(?:\\?[$€£¥₹]\s?)?"
    rf"(?:\\[dt]?frac\{{-?\d+\}}\{{\d+\}}|(?:{_PLAIN})(?:/\d+)?)(?:\s?\\?%)?"
)


def _boxed(text: str) -> str | None:
    boxes = list(_BOX.finditer(text))
    closing = _closing_braces(text) if boxes else {}
    for match in reversed(boxes):
        start = match.end()
        if start in closing:
            return text[start + 1 : closing[start]]
        if word := re.compile(r"\\?[^\s$\\{}]+").match(text, start):
            return word[0].rstrip(".,;")
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Maps the index of each opening brace that is closed to the index of its closing brace."""
    closing, opened, escaped = {}, [], False
    for index, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            opened.append(index)
        elif character == "}" and opened:
            closing[opened.pop()] = index
    return closing


def _last(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    def find(text: str) -> str | None:
        found = None
        for match in pattern.finditer(text):
            found = match
        return None if found is None else found[found.lastindex or 0]

    return find


def _answer_is(text: str) -> str | None:
    rest = _after_answer_is(text)
    return None if rest is None else _SENTENCE_END.split(rest.partition("\n")[0], maxsplit=1)[0]


def _answer_block(text: str) -> str | None:
    rest = _after_answer_is(text)
    return None if rest is None else _BLANK_LINE.split(rest, maxsplit=1)[0].rstrip(" .")


def _after_answer_is(text: str) -> str | None:
    found = None
    for match in _ANSWER_IS.finditer(text):
        found = match
    return None if found is None else text[found.end() :]


def _last_line(text: str) -> str | None:
    return text.strip().rpartition("\n")[2] or None


def _last_block(text: str) -> str | None:
    return _BLANK_LINE.split(text.strip())[-1] or None


STRATEGIES: dict[str, _Strategy] = {
    "boxed": _Strategy(_boxed, is_closed=True),
    "tags": _Strategy(_last(_TAGS), is_closed=True),
    "hashes": _Strategy(_last(_HASHES), is_closed=False),
    "answer_is": _Strategy(_answer_is, is_closed=False),
    "last_number": _Strategy(_last(_NUMBER), is_closed=False),
    "last_line": _Strategy(_last_line, is_closed=False),
    "answer_block": _Strategy(_answer_block, is_closed=False),
    "last_block": _Strategy(_last_block, is_closed=False),
    "whole": _Strategy(lambda text: text, is_closed=False),
}
"""`boxed`: the last \\boxed{…}. `tags`: the last <answer>…</answer>. `hashes`: the line after the
last ####. `answer_is`: the sentence after the last "answer is" or "Answer:". `last_number`: the
last number. `last_line`: the last line that is not empty. `answer_block` and
`last_block`: as `answer_is` and `last_line`, but up to a blank line. `whole`: everything."""

DEFAULT_STRATEGIES = "boxed,tags,hashes,answer_is,last_number"


def strategies_of(names: str) -> tuple[str, ...]:
    """Reads names of strategies, separated by commas.

    Raises:
      ValueError: there is no name, or a name is unknown.
    """
    listed = tuple(name.strip() for name in names.split(",") if name.strip())
    if not listed:
        raise ValueError(f"extract={names!r} must name a strategy: {', '.join(STRATEGIES)}.")
    for name in listed:
        require_one_of("extract", name, STRATEGIES)
    return listed


def extract(text: str, strategies: Sequence[str], truncated: bool = False) -> Extracted | None:
    """Returns the answer that the first successful strategy finds; None if none finds one.

    Args:
      truncated: whether the completion was cut. Then only strategies with `is_closed` are tried.
    """
    for name in strategies:
        strategy = STRATEGIES[name]
        if truncated and not strategy.is_closed:
            continue
        found = strategy.find(text)
        if found is not None:
            return Extracted(found.strip(), name)
    return None


def gold_answer(text: str) -> str:
    """Returns the answer of a gold text, which may be a worked solution with a marked answer."""
    found = extract(text, ("boxed", "tags", "hashes"))
    return text.strip() if found is None else found.text
