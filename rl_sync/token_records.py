"""Token records: what explorers record of each token beside its log-probability.

The experts of a token are in `rl_sync.expert_routes`. The distribution that it was drawn from, for
score centering, holds the log-probabilities of the whole vocabulary; or those of the K likeliest
tokens, their ids and, last, the log-probability of all other tokens together. So it takes 4 bytes
for a token of the vocabulary, or 8 for each of the likeliest and 4 for the others.

Letters in shapes: T tokens, K likeliest tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rl_sync.expert_routes import RouteShape

ROUTES, SAMPLER = "routes", ("sampler_logprobs", "sampler_ids")
"""Columns of the records, as in `Group`."""
NEVER = -1e4
"""Log-probability of tokens that the sampler never draws; it is finite, so that 0 times it is 0."""

MOST_RECORDED = 4096
"""Largest vocabulary whose distributions are recorded whole: 16 KiB for each token."""


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
