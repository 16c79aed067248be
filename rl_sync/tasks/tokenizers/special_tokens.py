"""Finds the special tokens of a `transformers` tokenizer, and encodes their names as plain text."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any


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
        # Encoding names as text sets a flag of the backend, which another thread may be using.
        encode = copy.deepcopy(self._backend).encode
        return functools.partial(encode, add_special_tokens=False, split_special_tokens=True)

    def encode_as_text(self, text: str) -> list[int]:
        """Encodes a text in which the names of special tokens are plain text."""
        ids = self._encode(text)
        if self.ids.isdisjoint(ids):
            return ids
        # A name may also be a token of the tokenizer's own model, so each name is cut in two.
        names = (re.finditer(re.escape(name), text) for name in self.names)
        cuts = sorted({match.start() + 1 for match in itertools.chain(*names)})
        pieces = itertools.pairwise([0, *cuts, len(text)])
        return [i for start, stop in pieces for i in self._encode(text[start:stop])]
