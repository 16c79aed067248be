"""Expressions of settings: a name with options, and a weighted sum of these.

math + 0.2 * format(pattern="<answer>.*</answer>") - 0.1 * rewards/mine.py:terse
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_SIGN = re.compile(r"\s*([+-])")
_COMMA = re.compile(r"\s*,")
_WEIGHT = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*\*")
_NAME = re.compile(r"\s*((?:[\w.~/-]+:)?[A-Za-z_][\w.]*)")
_FORM = (
    "a sum of names with weights and options, such as"
    " math + 0.2 * format(pattern='<answer>.*</answer>') + path/to/file.py:function"
)


class Term(NamedTuple):
    """A name with its weight and its options.

    Attributes:
      name: a name of a table, or a reference; see `rl_sync.references`.
      options: the options by name, with plain Python values.
    """

    weight: float
    name: str
    options: Mapping[str, Any]


def parse_sum(text: str, setting: str = "") -> list[Term]:
    """Reads a weighted sum.

    Args:
      setting: name of the setting that has the text, for messages; may be empty.

    Raises:
      ValueError: the text is not a weighted sum; the message quotes the part that cannot be read.
    """
    terms: list[Term] = []
    at = 0
    with _naming(setting):
        while not terms or text[at:].strip():
            sign = _SIGN.match(text, at)
            if terms and not sign:
                raise _unreadable(text, at)
            at = sign.end() if sign else at
            term, at = _term(text, at)
            terms.append(term._replace(weight=-term.weight) if sign and sign[1] == "-" else term)
    return terms


def parse_call(text: str, setting: str = "") -> Term:
    """Reads one name with options; its weight is 1.

    Args:
      setting: see `parse_sum`.

    Raises:
      ValueError: the text is not one name with options.
    """
    with _naming(setting):
        try:
            term, end = _term(text, 0)
        except ValueError as error:
            raise _no_call(text) from error
        if text[end:].strip() or term.weight != 1:
            raise _no_call(text)
        return term


def parse_calls(text: str, setting: str = "") -> list[Term]:
    """Reads names with options, separated by commas; their weights are 1.

    Args:
      setting: see `parse_sum`.

    Raises:
      ValueError: the text is not a list of names with options.
    """
    terms: list[Term] = []
    at = 0
    with _naming(setting):
        while not terms or text[at:].strip():
            if terms:
                comma = _COMMA.match(text, at)
                if not comma:
                    raise _no_list(text)
                at = comma.end()
            try:
                term, at = _term(text, at)
            except ValueError as error:
                raise _no_list(text) from error
            if term.weight != 1:
                raise _no_list(text)
            terms.append(term)
    return terms


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Puts the name of a setting before the text that an error quotes."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{setting}={error}" if setting else str(error)) from error


def _no_call(text: str) -> ValueError:
    return ValueError(f"{text!r} must be one name with options, such as name(level=3).")


def _no_list(text: str) -> ValueError:
    return ValueError(
        f"{text!r} must be names with options, separated by commas, such as name(level=3), other."
    )


def _term(text: str, at: int) -> tuple[Term, int]:
    weight = 1.0
    if found := _WEIGHT.match(text, at):
        try:
            weight, at = float(found[1]), found.end()
        except ValueError as error:
            raise _unreadable(text, at) from error
    name = _NAME.match(text, at)
    if name is None:
        raise _unreadable(text, at)
    options, at = _options(text, name.end())
    return Term(weight, name[1], options), at


def _options(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Reads options in parentheses, if there are any."""
    if not text[at:].lstrip().startswith("("):
        return {}, at
    start = text.index("(", at)
    for end in (match.end() for match in re.finditer(r"\)", text)):
        if end <= start:
            continue
        try:
            call = ast.parse(f"f{text[start:end]}", mode="eval").body
        except SyntaxError:
            continue  # The parenthesis was inside a string, or closed an inner one.
        if isinstance(call, ast.Call):
            return _values(call, text, start), end
    raise _unreadable(text, start)


def _values(call: ast.Call, text: str, at: int) -> dict[str, Any]:
    options = {}
    for keyword in call.keywords:
        try:
            options[keyword.arg or ""] = ast.literal_eval(keyword.value)
        except ValueError as error:
            raise _unreadable(text, at) from error
    if call.args or "" in options:
        raise ValueError(f"{text!r}: options are written as name=value, as in f(level=3).")
    return options


def _unreadable(text: str, at: int) -> ValueError:
    where = repr(text[at:].strip()) if text[at:].strip() else "its end"
    return ValueError(f"{text!r} cannot be read from {where} on: write {_FORM}.")
