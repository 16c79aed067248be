"""Templates of questions to a judge: fields of a row, and the completion inside a delimiter."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_sync.rewards.judgement import Completion, Row
from rl_sync.spelling import hint

COMPLETION = "completion"
_FILES = (".txt", ".md", ".jinja", ".rubric")
_DIGITS = 16


@dataclasses.dataclass(frozen=True)
class Template:
    """A text with fields in braces, such as `{prompt}`; literal braces are doubled.

    Fields are `{completion}`, which is required, and the row's fields, such as `{prompt}` and
    `{answer}`. Texts are filled in once, so braces in them stay as they are.

    Attributes:
      text: the template, or the path of a file with it (.txt, .md).

    Raises:
      ValueError: there is no such file, or the template cannot be read.
    """

    text: str

    def __post_init__(self) -> None:
        if COMPLETION not in self.fields:
            raise ValueError(
                f"the template {_short(self.text)!r} asks about no completion: write {{completion}}"
                " where it belongs."
            )

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        """The names in braces."""
        return frozenset(name for _, name in self._parts if name is not None)

    def check(self, row: Row) -> None:
        """Checks that a row has the template's fields.

        Raises:
          ValueError: it lacks one.
        """
        for name in sorted(self.fields - {COMPLETION}):
            if name not in row:
                raise ValueError(
                    f"the template has {{{name}}}, and the row has no field {name!r}"
                    f"{hint(name, map(str, row))}"
                )

    def fill(self, row: Row, completion: Completion) -> tuple[str, str]:
        """Fills in a row and a completion.

        Returns:
          (text, delimiter): the completion stands between `<delimiter>` and `</delimiter>`, and
          does not contain the delimiter.
        """
        delimiter = delimiter_of(completion.text)
        values: dict[str, Any] = {
            **row,
            COMPLETION: f"<{delimiter}>\n{completion.text}\n</{delimiter}>",
        }
        parts = [
            literal if name is None else literal + _written(values[name])
            for literal, name in self._parts
        ]
        return "".join(parts), delimiter

    @functools.cached_property
    def _parts(self) -> list[tuple[str, str | None]]:
        """Literal texts, each with the field that follows it."""
        text = self._read()
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"the template {_short(text)!r} cannot be read: {error}.") from error
        for _, name, spec, conversion in parsed:
            if name is not None and (not name.isidentifier() or spec or conversion):
                raise ValueError(
                    f"the template {_short(text)!r} has {{{name}}}, which is no field's name: a"
                    " brace that stands for itself is doubled."
                )
        return [(literal, name) for literal, name, _, _ in parsed]

    def _read(self) -> str:
        if "\n" in self.text or "{" in self.text or not self.text.endswith(_FILES):
            return self.text
        try:
            return Path(self.text).expanduser().read_text("utf-8")
        except OSError as error:
            raise ValueError(
                f"the template's file {self.text} cannot be read: {error.strerror} (the current"
                f" directory is {Path.cwd()})."
            ) from error


def delimiter_of(text: str) -> str:
    """Makes a name that a text does not contain; equal texts have equal names.

    The author of the text cannot foresee the name: every change of the text changes it.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    while digest[:_DIGITS] in text:
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return f"{COMPLETION}-{digest[:_DIGITS]}"


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
