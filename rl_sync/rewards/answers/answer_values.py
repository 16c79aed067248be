"""Values of answers: numbers, choices, words, collections, and formulas that need algebra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.rewards.answers.brackets import are_balanced, open_brackets, split_outside
from rl_sync.rewards.answers.notation import unified, without_text_commands
from rl_sync.rewards.answers.numbers import Number, number
from rl_sync.rewards.answers.units import KNOWN, UnitError, unit

_DEEPEST = 6
"""Maximum depth of brackets; anything deeper is read as a formula."""


class LetteredAnswer(NamedTuple):
    """The letter of a choice, with the choice's text if it is given: `(B) 12`."""

    letter: str
    rest: str = ""


class Colon(NamedTuple):
    """Numbers separated by colons, a ratio or a time; `half` is `am`, `pm` or ""."""

    terms: tuple[Number, ...]
    half: str = ""


class Based(NamedTuple):
    """Digits in a named base, such as 101_2."""

    digits: str
    base: int


class Words(NamedTuple):
    """An answer in words, in lower case and without punctuation."""

    text: str


class Formula(NamedTuple):
    """A formula in unified notation, which only algebra can compare."""

    text: str


class Labelled(NamedTuple):
    """A value with the name before its equality sign, as in `x = 5`."""

    label: str
    value: Value


class Collection(NamedTuple):
    """Several values.

    Attributes:
      kind: `list` (no brackets), `set` (braces), or the two brackets of an ordered collection:
        `()`, `[]`, `(]` or `[)`.
    """

    kind: str
    items: tuple[Value, ...]


class Union(NamedTuple):
    """A union of intervals or sets."""

    items: tuple[Value, ...]


class Matrix(NamedTuple):
    """A matrix, by rows."""

    rows: tuple[tuple[Value, ...], ...]


class FormulaWithUnit(NamedTuple):
    """A formula with a unit, such as `25\\pi\\text{ cm}^2`."""

    value: Value
    unit: str


class Conditions(NamedTuple):
    """Inequalities of a variable: all of them hold (`and`), or one does (`or`)."""

    joint: str
    items: tuple[Value, ...]


Value = (
    FormulaWithUnit | Conditions | Number | LetteredAnswer | Colon | Based | Words | Formula
    | Labelled | Collection | Union | Matrix
)  # fmt: skip

_CHOICE = re.compile(
    r"(?:(?i:option|choice|answer:)\s*)?(?:\(([A-Ja-j])\)|([A-J])(?=[).:]|$| \([A-Z]?[a-z])[).:]?)"
)
_IN_BRACKETS = re.compile(r"\([A-Z]?[a-z][a-z ,'-]+\)\.?$")
"""The text of a choice behind its letter: `B (Paris)`."""
_CONTINUES_FORMULA = "+-*/^=,<>(_!"
_COLON = re.compile(r"(\d+(?:\.\d+)?(?: ?: ?\d+(?:\.\d+)?)+)(?: ?([ap])\.? ?m\.?)?$", re.IGNORECASE)
_BASED = re.compile(r"([0-9A-Za-z]+)_\{? ?(?:\\text\{)?(\d+|two|eight|ten)\}?\}?$")
_BASES = {"two": 2, "eight": 8, "ten": 10}
_LABEL = re.compile(
    r"((?:\\?[A-Za-z]|\\[A-Za-z]+(?: ?[A-Z]{1,4}(?![A-Za-z]))?|[A-Z]{2,4}|[A-Za-z]{4,}"
    r"|\\text\{[^{}]*\}|\((?:[A-Za-z] ?, ?)+[A-Za-z]\))"
    r"(?:_\{?\w+\}?)?'*(?: ?\([a-zA-Z0-9, ]{1,9}\))?) ?$"
)
_EQUALS = re.compile(r"(?<![<>!\\:])=(?!=)|(?<=[A-Za-z]) ?\\in(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_INFINITY = re.compile(r"([-+]?) ?(?:\\infty|infinity|inf|oo)$", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z][A-Za-z'’,.!?\" -]*$")
_FORMULA_WORDS = {
    "sqrt", "frac", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "pi", "infty", "infinity", "inf", "oo", "mod",
    "gcd", "lcm", "max", "min",
}  # fmt: skip
_SHORT_WORDS = {
    "yes", "no", "odd", "even", "red", "mon", "tue", "wed", "thu", "fri", "sat", "sun", "may",
    "dne",
}  # fmt: skip
_SYNONYMS = {
    "dne": "does not exist",
    "all reals": "all real numbers",
    "all real number": "all real numbers",
    "all real": "all real numbers",
}
_REALS = {r"\mathbb{R}", r"\mathbb R", r"(-\infty,\infty)", r"(-\infty, \infty)"}
_EMPTY = {r"\emptyset", r"\{\}", "{}", r"\{ \}"}
_OPENINGS = {r"\{": "{", r"\langle": "(", "(": "(", "[": "[", "{": "{"}
_CLOSINGS = {r"\}": "}", r"\rangle": ")", ")": ")", "]": "]", "}": "}", "[": ")"}
_RELATION = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![A-Za-z])")
_BUILDER = re.compile(
    r" ?[A-Za-z] ?(?:\\in ?\\mathbb ?\{? ?R ?\}? ?)?(?:\\mid(?![A-Za-z])|\||:|\\colon)"
    r"(.*(?:[<>]|\\(?:le|ge|lt|gt|ne)(?![A-Za-z])).*)"
)
"""`x \\mid x > 3`, between the braces of a set."""
_MEASURED = re.compile(
    r"(.*(?:\\pi|\d|[)}])) ?((?:\\text\{[^{}]+\}|(?<= )(?:square |sq |cubic )?[A-Za-z]{2,})"
    r"(?: ?\^ ?\{?[23]\}?)?)"
)
_SIGNS = {"-": "-", "+": "", "": ""}
_SEPARATOR = re.compile(
    r" ?(?:\\text\{ ?(?:,? ?and|,? ?or) ?\}|,? (?:and|or) |;) ?(?:(?:and|or) )?", re.IGNORECASE
)


def value(text: str) -> Value:
    """Reads an answer as a value."""
    return _read(unified(text), 0)


def _read(text: str, depth: int) -> Value:
    text = text.strip()
    if text in _REALS:
        return Words("all real numbers")
    if text in _EMPTY:
        return Collection("set", ())
    if (found := number(text)) is not None:
        return found
    if depth > _DEEPEST:
        return Formula(text)
    for reader in (
        _atom,
        _measured,
        _conditions,
        _labelled,
        _plus_minus,
        _union,
        _matrix,
        _list,
        _bracketed,
    ):
        if (made := reader(text, depth)) is not None:
            return made
    return Formula(text)


def _atom(text: str, depth: int) -> Value | None:
    plain = without_text_commands(text)
    if match := _CHOICE.match(plain):
        rest = plain[match.end() :].lstrip(" .:")
        if not rest or rest[0] not in _CONTINUES_FORMULA or _IN_BRACKETS.match(rest):
            return LetteredAnswer((match[1] or match[2]).upper(), rest)
    if match := _COLON.match(plain):
        terms = tuple(number(term) for term in match[1].split(":"))
        assert None not in terms, "the pattern has numbers"
        return Colon(terms, (match[2] + "m").lower() if match[2] else "")  # type: ignore[arg-type]
    if (match := _BASED.match(text)) and (len(match[1]) > 1 or match[1].isdigit()):
        base = _BASES.get(match[2]) or int(match[2])
        return Based(match[1].upper().lstrip("0") or "0", base)
    if match := _INFINITY.match(text):
        return Formula(_SIGNS[match[1]] + r"\infty")
    return _words(plain, is_marked=text.startswith(r"\text{"))


def _words(plain: str, is_marked: bool) -> Words | None:
    if not _WORDS.match(plain):
        return None
    words = re.findall(r"[a-z]+(?:['-][a-z]+)*", plain.lower())
    if not words or _FORMULA_WORDS & set(words) or (len(plain) == 1 and not is_marked):
        return None
    if not (is_marked or any(len(word) >= 4 or word in _SHORT_WORDS for word in words)):
        return None
    joined = " ".join(words[1:] if words[0] in {"the", "a", "an"} and len(words) > 1 else words)
    return Words(_SYNONYMS.get(joined, joined))


def _labelled(text: str, depth: int) -> Value | None:
    if text.startswith(r"\approx"):
        return _read(text.removeprefix(r"\approx"), depth + 1)
    if r"\approx" in text:
        return _read(text.partition(r"\approx")[0], depth + 1)
    if len(split_outside(text, ",")) > 1 or _SEPARATOR.search(text):
        return None
    parts = [part.strip() for part in _EQUALS.split(text)]
    if len(parts) < 2 or not all(parts):
        return None
    if match := _LABEL.match(parts[0] + " "):
        label = re.sub(r"[\s{}]", "", without_text_commands(match[1]))
        return Labelled(label, _read(parts[-1], depth + 1))
    last = number(parts[-1])
    if len(parts) > 2 and not _has_letters(parts[-2]) and (last or not _has_letters(parts[-1])):
        return _read(parts[-1], depth + 1)  # `a + b = 2 + 3 = 5` answers 5.
    words = re.findall("[A-Za-z]+", re.sub(r"\\[A-Za-z]+", "", "".join(parts[:-1])))
    is_measured = last and last.unit and all(word in KNOWN for word in words)
    if last and (is_measured or not words or all(map(number, parts))):
        return last  # `12 cm * 5 cm = 60 cm^2` answers 60 cm^2, and `2 dozen = 24` answers 24.
    if _has_letters("".join(parts[:-1])):
        return None
    if not _has_letters(parts[-1]):
        return _read(parts[-1], depth + 1)  # `2 + 3 = 5` answers 5.
    exchanged = len(parts) == 2 and re.fullmatch(r"\\?[A-Za-z]", parts[1])
    return Labelled(parts[1], _read(parts[0], depth + 1)) if exchanged else None  # `5 = x`


def _has_letters(text: str) -> bool:
    """Says whether a formula has variables, or words."""
    return re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)) is not None


def _measured(text: str, depth: int) -> Value | None:
    match = _MEASURED.fullmatch(text)
    if match is None or _RELATION.search(match[1]) or "=" in match[1]:
        return None
    is_marked = match[2].startswith("\\text")
    plain = without_text_commands(match[2]).replace(" ^", "^")
    words = re.sub(r"\^.*", "", plain).split()
    if not is_marked and not all(word.lower() in KNOWN for word in words):
        return None
    try:
        found = unit(plain, is_marked=is_marked)
    except UnitError:
        return None
    return FormulaWithUnit(_read(match[1], depth + 1), found)


def _conditions(text: str, depth: int) -> Value | None:
    if not _RELATION.search(text) or open_brackets(text):
        return None
    for joint in ("or", "and"):
        parts = re.split(rf" ?\\text\{{ ?{joint} ?\}} ?|(?<=[^A-Za-z]){joint}(?=[^A-Za-z])", text)
        plain = re.sub(r"\\[A-Za-z]+", "", "".join(parts))
        if (
            len(parts) > 1
            and len(set(re.findall("[A-Za-z]", plain))) == 1
            and all(_RELATION.search(part) and are_balanced(part) for part in parts)
        ):
            return Conditions(joint, tuple(_read(part, depth + 1) for part in parts))
    return None


def _plus_minus(text: str, depth: int) -> Value | None:
    if text.count(r"\pm") != 1 or split_outside(text, ",")[1:]:
        return None
    before, _, after = text.partition(r"\pm")
    plus, minus = (before + sign + after.lstrip() for sign in ("+" if before.strip() else "", "-"))
    return Collection("list", (_read(plus, depth + 1), _read(minus, depth + 1)))


def _union(text: str, depth: int) -> Value | None:
    parts = re.split(r"\\cup(?![A-Za-z])|(?<=[)\]]) ?U ?(?=[(\[])", text)
    if len(parts) < 2:
        return None
    return Union(tuple(_read(part, depth + 1) for part in parts))


def _matrix(text: str, depth: int) -> Value | None:
    match = _MATRIX.match(text)
    if match is None or r"\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
    return Matrix(tuple(tuple(_read(cell, depth + 1) for cell in row.split("&")) for row in rows))


def _list(text: str, depth: int) -> Value | None:
    parts = _split_words(text)
    pieces = [piece for part in parts for piece in split_outside(part, ",")]
    if len(pieces) < 2:
        return None
    spaced = [piece for part in parts for piece in split_outside(part, ", ")]
    if 1 < len(spaced) < len(pieces) and all(number(piece) for piece in spaced):
        pieces = spaced  # `1,234, 5,678` has two numbers.
    return Collection("list", _read_all(pieces, depth))


def _split_words(text: str) -> list[str]:
    """Splits at `and`, `or` and semicolons outside of brackets."""
    parts, start = [], 0
    for match in _SEPARATOR.finditer(text):
        if open_brackets(text[: match.start()]) == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _bracketed(text: str, depth: int) -> Value | None:
    if text[:1] == "]" and text[-1:] in {"[", "]"} and len(text) > 2:
        return _ordered("(" + (")" if text[-1] == "[" else "]"), text[1:-1], depth)  # French.
    opening = next((sign for sign in _OPENINGS if text.startswith(sign)), "")
    closing = next((sign for sign in _CLOSINGS if text.endswith(sign)), "")
    if not opening or not closing or len(text) < len(opening) + len(closing):
        return None
    inside = text[len(opening) : len(text) - len(closing)]
    if not are_balanced(inside):
        return None  # `(1, 2), (3, 4)` and `(x+1)(x-2)`.
    brackets = _OPENINGS[opening] + _CLOSINGS[closing]
    if brackets == "{}" and (match := _BUILDER.fullmatch(inside)):
        return _read(match[1], depth + 1)  # A condition describes the set.
    if brackets == "{}":
        is_condition = r"\mid" in inside or "|" in inside or r"\colon" in inside
        pieces = split_outside(inside, ",")
        return None if is_condition else Collection("set", _read_all(pieces, depth))
    return None if "{" in brackets or "}" in brackets else _ordered(brackets, inside, depth)


def _ordered(brackets: str, inside: str, depth: int) -> Value | None:
    pieces = split_outside(inside, ",")
    if len(pieces) == 1 and (pieces := split_outside(inside, ";")) == [inside.strip()]:
        return _read(inside, depth + 1) if brackets == "()" else None
    return Collection(brackets, _read_all(pieces, depth))


def _read_all(pieces: Sequence[str], depth: int) -> tuple[Value, ...]:
    return tuple(_read(piece, depth + 1) for piece in pieces if piece.strip())
