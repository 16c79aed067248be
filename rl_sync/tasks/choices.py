"""Reads multiple-choice options, gives them letters, and finds the letter of the right option."""

from __future__ import annotations

import json
import reprlib
import string
from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.row_answers import without_padding


class Choices(NamedTuple):
    """The options of a question.

    Attributes:
      texts: options; the first gets the letter A.
      labels: labels of the options in the data set, if it has any.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @classmethod
    def of_field(cls, value: object) -> Choices:
        """Reads the choices of a field: a list of texts, or {"text": [...], "label": [...]}.

        The JSON of either is read, too. Nulls at the end of a list are left out.

        Raises:
          ValueError: the value has neither form; the message describes it, and the caller adds the
            place.
        """
        if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"is {reprlib.repr(value)}, which is not JSON ({error})"
                ) from error
        texts, labels = value, ()
        if isinstance(value, Mapping):
            texts, labels = value.get("text"), value.get("label") or ()
        texts, labels = without_padding(texts), without_padding(labels)
        if (
            not isinstance(texts, list | tuple)
            or not 2 <= len(texts) <= len(string.ascii_uppercase)
            or not isinstance(labels, list | tuple)
            or len(labels) not in (0, len(texts))
            or None in (*texts, *labels)
        ):
            raise ValueError(
                f"is {reprlib.repr(value)}; it must be a list of 2 to"
                f" {len(string.ascii_uppercase)} texts, or"
                ' {"text": […], "label": […]} with as many of both.'
            )
        return cls(tuple(map(str, texts)), tuple(map(str, labels)))

    def lines(self) -> str:
        """Writes the options as lines `A. text`."""
        return "\n".join(
            f"{letter}. {text}"
            for letter, text in zip(string.ascii_uppercase, self.texts, strict=False)
        )

    def letter(self, answer: object) -> str:
        """Returns the letter of the right option.

        Args:
          answer: the option's label, letter, text, or index from 0. The first of these that matches
            counts.

        Raises:
          ValueError: nothing matches; the message describes the answer, and the caller adds the
            place.
        """
        letters = string.ascii_uppercase[: len(self.texts)]
        name = str(answer).strip()
        if not isinstance(answer, int):
            for names in (self.labels, letters, self.texts):
                if name in tuple(names):
                    return letters[tuple(names).index(name)]
        if name.isdecimal() and len(name) < 3 and int(name) < len(letters):
            return letters[int(name)]
        called = f", a label ({', '.join(self.labels)})" if self.labels else ""
        raise ValueError(
            f"is {answer!r}, which is not one of the {len(letters)} choices: it must be an index"
            f" from 0 to {len(letters) - 1}, a letter from A to {letters[-1]}{called}, or a"
            " choice's text."
        )
