"""Token records: what explorers record of each token beside its log-probability.

*Routes* are the experts that a mixture of experts sent a token to. An expert takes one byte, or two
in a mixture of more than 255. The greatest number stands for a token without a record.

The *distribution* that a token was drawn from, for score centering, holds the log-probabilities of
the whole vocabulary; or those of the K likeliest tokens, their ids and, last, the log-probability
of all other tokens together. So it takes 4 bytes for a token of the vocabulary, or 8 for each of
the likeliest and 4 for the others.

Letters in shapes: T tokens, K likeliest tokens, L layers, C experts of a token, S positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

ROUTES, SAMPLER = "routes", ("sampler_logprobs", "sampler_ids")
"""Columns of the records, as in `Group`."""
NEVER = -1e4
"""Log-probability of tokens that the sampler never draws; it is finite, so that 0 times it is 0."""

MOST_RECORDED = 4096
"""Largest vocabulary whose distributions are recorded whole: 16 KiB for each token."""


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


class SamplerShape(NamedTuple):
    """Shape of a token's record.

    Attributes:
      vocab_size: number of tokens of the vocabulary.
      best: number of likeliest tokens that are recorded, K; 0 for the whole vocabulary.
    """

    vocab_size: int
    best: int = 0

    @property
    def outcomes(self) -> int:
        """Number of log-probabilities of a token."""
        return self.best + 1 if self.best else self.vocab_size

    def blank(self, *shape: int) -> SamplerRecord:
        """Makes the record of tokens that were not sampled."""
        logprobs = np.zeros((*shape, self.outcomes), np.float32)
        return SamplerRecord(logprobs, np.zeros((*shape, self.best), np.int32))


class SamplerRecord(NamedTuple):
    """Record of T tokens.

    Attributes:
      logprobs: log-probabilities of the outcomes.
      ids: the likeliest tokens, none where the whole vocabulary is recorded.
    """

    logprobs: Float[np.ndarray, "T outcomes"]
    ids: Int[np.ndarray, "T K"]

    def after(self, start: int) -> SamplerRecord:
        """Returns the record of the tokens from a position on."""
        return SamplerRecord(self.logprobs[start:], self.ids[start:])

    def before(self, end: int) -> SamplerRecord:
        """Returns the record of the tokens before a position."""
        return SamplerRecord(self.logprobs[:end], self.ids[:end])


class PlacedRecord(NamedTuple):
    """Record of the tokens from position `first` on."""

    first: int
    record: SamplerRecord


def moved(records: tuple[PlacedRecord, ...], by: int) -> tuple[PlacedRecord, ...]:
    """Moves records to later positions."""
    return tuple(PlacedRecord(one.first + by, one.record) for one in records)


def joined(parts: list[SamplerRecord]) -> SamplerRecord | None:
    """Returns the record of the tokens of several parts; None without parts."""
    if not parts:
        return None
    return SamplerRecord(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class TokenRecords(NamedTuple):
    """Shapes of the records; None for records that are not made.

    Attributes:
      routes: shape of a token's routes.
      sampler: shape of the distribution that a token was drawn from.
    """

    routes: RouteShape | None = None
    sampler: SamplerShape | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [*self.blank(0)]

    def blank(self, *shape: int) -> dict[str, Any]:
        """Makes the columns of tokens without a record, arrays by name."""
        columns = dict[str, Any]()
        if self.routes is not None:
            columns[ROUTES] = self.routes.unrecorded(*shape)
        if self.sampler is not None:
            columns |= zip(SAMPLER, self.sampler.blank(*shape), strict=True)
            if not self.sampler.best:
                del columns[SAMPLER[1]]
        return columns


NO_RECORDS = TokenRecords()
