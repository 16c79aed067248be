"""Special tokens of a `transformers` tokenizer, and their names as plain text in contents."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

_OPEN = "\U000f0000"
_CLOSE = "\U000f0001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_SHOWN = 80


def encoded(encode: Callable[..., list[int]], text: str, **options: Any) -> list[int]:
    """Encodes a text by a method of a `transformers` tokenizer.

    Raises:
      ValueError: the vocabulary has no token for a part of it, nor one for what is unknown.
    """
    try:
        return encode(text, **options)
    except Exception as error:
        if type(error) is not Exception:  # The library's own errors are of this very class.
            raise
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise ValueError(
            f"The tokenizer has no token for a part of {shown!r}: {error}. Leave such texts out, or"
            " give one that reads any text (tokenizer.path)."
        ) from error


class SpecialTokens:
    """The special tokens of a `PreTrainedTokenizerBase`.

    Tokens that were added to the vocabulary without being special, such as `<tool_call>` of Qwen,
    are ordinary text.

    Attributes:
      names: texts of the tokens, longest first.
      ids: their ids.
      pattern: matches any of them, with the white space that it absorbs; None if there are none.
    """

    def __init__(self, backend: Any) -> None:
        special = {i: t for i, t in backend.added_tokens_decoder.items() if t.special}
        tokens = sorted(special.values(), key=lambda token: (-len(str(token)), str(token)))
        self.names = tuple(str(token) for token in tokens)
        patterns = [
            r"\s*" * token.lstrip + re.escape(str(token)) + r"\s*" * token.rstrip
            for token in tokens
        ]
        self.pattern = re.compile("|".join(patterns)) if patterns else None
        self.ids = frozenset(special)
        self._backend = backend

    @functools.cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        # A copy, since encoding sets a flag here: another thread may be using the backend.
        encode = copy.deepcopy(self._backend).encode
        return functools.partial(
            encoded, encode, add_special_tokens=False, split_special_tokens=True
        )

    def encode_as_text(self, text: str) -> list[int]:
        """Encodes a text in which the names of special tokens are plain text.

        Raises:
          ValueError: see `encoded`.
        """
        ids = self._encode(text)
        if self.ids.isdisjoint(ids):
            return ids
        # A name may also be a token of the tokenizer's own model, so each name is cut in two.
        names = (re.finditer(re.escape(name), text) for name in self.names)
        cuts = sorted({match.start() + 1 for match in itertools.chain(*names)})
        pieces = itertools.pairwise([0, *cuts, len(text)])
        return [i for start, stop in pieces for i in self._encode(text[start:stop])]


class Shield:
    """Covers names of special tokens in texts, and uncovers them.

    A tool may answer with the text `<|im_end|>`. In the rendered conversation it would look like
    the end of the turn. So each name in a content is covered by a mark before the template sees it,
    and uncovered only where it is encoded as text.

    Covering the same text twice gives the same text, so covered texts can be compared.

    Args:
      names: the names to cover, longer ones before those that they contain.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        # A text may hold the character that opens a mark: it is covered like a name.
        self._names = (_OPEN, *names)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._pattern = re.compile("|".join(map(re.escape, self._names)))

    def cover(self, value: object) -> Any:
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
