"""Comparison of texts without case, punctuation, accents and articles; lists in texts."""

from __future__ import annotations

import collections
import json
import re
import unicodedata

from rl_sync.rewards.answers.answer_comparison import same_value
from rl_sync.rewards.answers.answer_values import value
from rl_sync.rewards.answers.canonical import canonical
from rl_sync.rewards.answers.notation import unified, without_bullets, without_text_commands
from rl_sync.rewards.answers.numbers import Number

_ARTICLES = {"a", "an", "the"}
_TOKEN = re.compile(r"\d+(?:[.,/:]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[+\-−×÷=<>%$€£°]")
_NUMBERING = re.compile(r"(?:^|(?<=[\s,;]))\(?(\d{1,2})[.):](?=\s)\s*")


def tokens(text: str) -> list[str]:
    """Returns the words and numbers of a text in lower case, without articles and accents."""
    plain = re.sub(r"(?<=\s)\\?&(?=\s)", "and", without_text_commands(unified(text)))
    folded = unicodedata.normalize("NFKD", plain.casefold())
    folded = "".join(one for one in folded if not unicodedata.combining(one))
    found = _TOKEN.findall(folded)
    kept = [token for token in found if token not in _ARTICLES]
    return kept or found


def plain(*texts: str) -> str:
    """Writes texts in canonical form: equal words or numbers give equal texts."""
    numbers = [value(text) for text in texts]
    return "; ".join(
        canonical(number) if isinstance(number, Number) else " ".join(tokens(text))
        for number, text in zip(numbers, texts, strict=True)
    )


def same_text(one: str, other: str) -> bool:
    """Says whether two texts have the same words, or are the same number."""
    if (words := tokens(one)) and words == tokens(other):
        return True
    a, b = value(one), value(other)
    return isinstance(a, Number) and isinstance(b, Number) and same_value(a, b, 0.0, None)


def token_f1(one: str, other: str) -> float:
    """Computes the F1 of the tokens that two texts share: 2·shared / (tokens of both)."""
    a, b = collections.Counter(tokens(one)), collections.Counter(tokens(other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


def items(text: str, count: int | None = None) -> list[str]:
    """Splits an answer into items.

    Items stand in a JSON list, on lines, behind numbers such as `1.`, or between semicolons,
    arrows, or commas.

    Args:
      count: the expected number of items. With 1, the answer is not split. If commas alone give
        another number, `and` separates items, too.
    """
    text = text.strip()
    if text.startswith("[") and (listed := _json_list(text)) is not None:
        return listed
    if "\n" in text or count == 1:
        text = without_bullets(text)
    if count == 1:
        return [_NUMBERING.sub("", text, count=1).strip()]
    numbered = _NUMBERING.split(text)
    if len(numbered) > 3:
        return [piece.strip(" ,;\n") for piece in numbered[2::2]]
    for separator in (r"\n+", r"\s*;\s*", r"\s*(?:->|→|=>|\\rightarrow|\\to(?![a-z])|[<>])\s*"):
        pieces = re.split(separator, text)
        if len(pieces) > 1:
            return [_NUMBERING.sub("", piece, count=1).strip() for piece in pieces if piece.strip()]
    between = r",\s+(?:and\s+)?|,(?!\d{3}(?!\d))"
    pieces = re.split(between, text)
    if len(pieces) != count:
        pieces = re.split(rf"{between}|\s+and\s+", text)
    return [piece.strip() for piece in pieces if piece.strip()]


def _json_list(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [piece.strip(" '\"") for piece in text[1:-1].split(",")] if text[-1] == "]" else None
    return [str(one) for one in found] if isinstance(found, list) else None
