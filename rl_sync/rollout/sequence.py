"""The host's side of a sequence in a slot: what was drawn for it, and where its text stops it."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rl_sync.rollout.request import Completion, Request

Decode = Callable[[Sequence[int]], str]

_MOST_BYTES_A_CHARACTER = 4


@dataclasses.dataclass
class GrowingSequence:
    """One completion while it is generated.

    Attributes:
      ticket, index: see `Completion`.
      request: what it belongs to.
      tokens, logprobs, versions: of the completion so far.
    """

    ticket: int
    index: int
    request: Request
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    _read: int = 0
    _cut: bool = False

    @property
    def length(self) -> int:
        """Tokens of the prompt and the completion so far."""
        return len(self.request.prompt) + len(self.tokens)

    @property
    def left(self) -> int:
        """The most tokens that are still to come."""
        return self.request.sampling.max_new_tokens - len(self.tokens)

    def append(
        self, tokens: Int[np.ndarray, " C"], logprobs: Float[np.ndarray, " C"], version: int
    ) -> None:
        """Adds what a chunk drew."""
        self.tokens += tokens.tolist()
        self.logprobs += logprobs.tolist()
        self.versions += [version] * len(tokens)

    def cut(self, decode: Decode | None) -> bool:
        """Whether a stop string is complete; what comes after its last token is removed.

        Each call reads the tokens that are new since the last one, and as many before them as a
        stop string may have.
        """
        sampling = self.request.sampling
        stops = sampling.stop_strings
        if not stops or decode is None or self._read == len(self.tokens):
            return self._cut
        overlap = _MOST_BYTES_A_CHARACTER * max(map(len, stops))
        start = max(0, self._read - overlap)

        def stopped(end: int) -> bool:
            text = decode(self.tokens[start:end])
            return any(stop in text for stop in stops)

        first = max(self._read + 1, sampling.min_new_tokens)
        self._read = len(self.tokens)
        ends = range(first, len(self.tokens) + 1)
        if ends and stopped(ends[-1]):
            end = ends[bisect.bisect_left(ends, True, key=stopped)]
            del self.tokens[end:], self.logprobs[end:], self.versions[end:]
            self._read, self._cut = end, True
        return self._cut

    def finished(self) -> Completion:
        """The completion as it is."""
        stopped = self._cut or self.tokens[-1] in self.request.sampling.stop_ids
        return Completion(
            ticket=self.ticket,
            index=self.index,
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            finish="stop" if stopped else "length",
        )
