"""Routes: the experts that a mixture of experts sent each token to, as an explorer recorded them.

An expert takes one byte, or two in a mixture of more than 255. The greatest number stands for a
token without a record.

Letters in shapes: T tokens, L layers, C experts of a token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt


class RouteShape(NamedTuple):
    """Shape of a token's routes.

    Attributes:
      layers: number of layers, L.
      per_token: number of experts of a token in each layer, C.
      experts: number of experts of each layer.
    """

    layers: int
    per_token: int
    experts: int

    @property
    def dtype(self) -> Any:
        """Dtype of an expert's number."""
        return np.uint8 if self.experts <= np.iinfo(np.uint8).max else np.uint16

    def unrecorded(self, *shape: int) -> UInt[np.ndarray, "... L C"]:
        """Makes an array of tokens without a record."""
        return np.full((*shape, self.layers, self.per_token), unrecorded_in(self.dtype), self.dtype)


class RecordedRoutes(NamedTuple):
    """Routes of the tokens from position `first` on."""

    first: int
    experts: UInt[np.ndarray, "T L C"]

    def write(self, to: UInt[np.ndarray, "S L C"]) -> None:
        """Writes the routes to the tokens of their positions that have no record yet.

        The first record of a token is the one under which its successor was sampled.
        """
        there = to[self.first : self.first + len(self.experts)]
        new = there == unrecorded_in(to.dtype)
        there[new] = self.experts[: len(there)][new]


def unrecorded_in(dtype: Any) -> int:
    """Returns the number that stands for no record."""
    return int(np.iinfo(dtype).max)
