"""Tokens that contain a stop string by themselves, at which rows wait for the host."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

_MOST_PAUSES = 32
_NO_TOKEN = -1


class Pauses:
    """Tokens that were seen to contain a stop string.

    Rows that sample one of them wait for the host. Otherwise they would decode in vain up to the
    end of the chunk.
    """

    def __init__(self) -> None:
        self._tokens: Int[np.ndarray, " N"] = np.full(_MOST_PAUSES, _NO_TOKEN, np.int32)

    @property
    def tokens(self) -> Int[np.ndarray, " N"]:
        """The tokens so far, padded with −1."""
        return self._tokens.copy()

    def learn(self, token: int | None) -> None:
        """Remembers a token, while there is room for it."""
        free = np.flatnonzero(self._tokens < 0)
        if token is not None and free.size and token not in self._tokens:
            self._tokens[free[0]] = token
