"""The host's record of a sequence in a slot: sampled tokens, and the search for stop strings.

Letters in shapes: C steps of a chunk, W words of the vocabulary, R prompts of a prefill, P their
positions, L layers, E experts of a token.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, UInt, UInt32

from rl_sync.rollout.request import (
    CompletionRequest,
    FinishedCompletion,
    Handle,
)
from rl_sync.rollout.slots import NOT_DRAWN
from rl_sync.sampling_masks import Entries, before, no_entries, of_words, shifted
from rl_sync.token_records import RecordedRoutes, SamplerRecord, joined
from rl_sync.types import CompletionProgress

Decode = Callable[[Sequence[int]], str]

_MOST_BYTES_A_CHARACTER = 4
_MOST_PAUSES = 32
_NO_TOKEN = -1
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MOST_PAUSES = 32
_NO_TOKEN = -1


class PromptRoutes(NamedTuple):
    """Experts of a prefill's tokens, of which row `row` is the prompt; they are on the device."""

    of_prefill: UInt[Array, "R P L E"]
    row: int


@dataclasses.dataclass
class GrowingSequence:
    """A completion in flight.

    Attributes:
      ticket, index: see `FinishedCompletion`.
      request: request that it belongs to.
      seed: seed of its request's sampling.
      unread: number of its prompt's last tokens that decode steps have not read yet.
      tokens, logprobs, versions: as in `FinishedCompletion`, so far.
      masks: sampling masks of each chunk; they may include tokens after the end.
      prompt_routes: experts of its prompt's tokens, if a prefill recorded them.
      surplus: number of tokens that were removed: sampled after a stop string, or by an engine that
        was lost.
    """

    ticket: int
    index: int
    request: CompletionRequest
    seed: tuple[int, ...]
    unread: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    masks: list[Entries] = dataclasses.field(default_factory=list)
    prompt_routes: PromptRoutes | None = None
    surplus: int = 0
    _routes: list[UInt[np.ndarray, "C L E"]] = dataclasses.field(default_factory=list)
    _samplers: list[SamplerRecord] = dataclasses.field(default_factory=list)
    _read: int = 0
    _cut: bool = False

    def __post_init__(self) -> None:
        # The first token that decode steps feed to the model.
        self._first_fed = len(self.request.prompt) - 1 - self.unread

    @classmethod
    def going_on(
        cls, handle: Handle, request: CompletionRequest, seed: tuple[int, ...]
    ) -> GrowingSequence:
        """Makes a completion that its request says was begun, with the tokens that it has."""
        begun = request.begun[handle.index]
        return cls(
            ticket=handle.ticket,
            index=handle.index,
            request=request,
            seed=seed,
            tokens=begun.tokens.tolist(),
            logprobs=begun.logprobs.tolist(),
            versions=begun.versions.tolist(),
            masks=[begun.masks],
            _samplers=[] if begun.sampler is None else [begun.sampler],
            _read=len(begun.tokens),
        )

    @property
    def length(self) -> int:
        """Number of tokens of the prompt and the completion so far."""
        return len(self.request.prompt) + len(self.tokens)

    @property
    def age(self) -> tuple[int, int]:
        """Order of sequences by the time of their requests, oldest first."""
        return self.ticket, self.index

    @property
    def handle(self) -> Handle:
        """Identifier of the completion."""
        return Handle(self.ticket, self.index)

    @property
    def whole(self) -> Int[np.ndarray, " S"]:
        """Tokens of the prompt and of the completion so far."""
        return np.concatenate([self.request.prompt, np.array(self.tokens, np.int32)])

    @property
    def left(self) -> int:
        """Maximum number of decode steps still to come."""
        return self.unread + self.request.sampling.max_new_tokens - len(self.tokens)

    def append(
        self,
        tokens: list[int],
        logprobs: list[float],
        version: int,
        kept: UInt32[np.ndarray, "C W"] | None,
        vocab_size: int,
    ) -> None:
        """Appends the tokens of a chunk, one for each token that the sequence fed; see `Chunk`."""
        self.unread = max(0, self.unread - len(tokens))
        if NOT_DRAWN in tokens:
            drawn = [i for i, token in enumerate(tokens) if token != NOT_DRAWN]
            tokens, logprobs = [tokens[i] for i in drawn], [logprobs[i] for i in drawn]
            kept = None if kept is None else kept[drawn]
        if kept is not None:
            self.masks.append(shifted(of_words(kept, vocab_size), len(self.tokens)))
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += [version] * len(tokens)

    def keep_first(self, count: int) -> None:
        """Drops all tokens but the first ones; the dropped ones count as surplus."""
        self.surplus += len(self.tokens) - count
        del self.tokens[count:], self.logprobs[count:], self.versions[count:]
        self._read = min(self._read, count)

    def record_routes(self, routes: UInt[np.ndarray, "C L E"]) -> None:
        """Appends the experts of the tokens that the sequence fed to the model in a chunk."""
        self._routes.append(routes)

    def record_sampler(self, record: SamplerRecord, tokens: list[int]) -> None:
        """Appends the distributions of a chunk.

        Args:
          tokens: tokens of the chunk; see `Chunk`.
        """
        drawn = np.array(tokens) != NOT_DRAWN
        self._samplers.append(SamplerRecord(*(values[drawn] for values in record)))

    def cut(self, decode: Decode | None) -> bool:
        """Says whether a stop string is complete, and removes the tokens after it.

        Each call decodes the tokens that are new since the last call, and as many earlier ones as a
        stop string may span. One that is complete before the minimum number of tokens is passed
        over, however many tokens a chunk has.
        """
        sampling = self.request.sampling
        stops = sampling.stop_strings
        if not stops or decode is None or self._read == len(self.tokens):
            return self._cut
        overlap = _MOST_BYTES_A_CHARACTER * max(map(len, stops))
        start = max(0, self._read - overlap)
        passed_over = self.tokens[start : max(0, sampling.min_new_tokens - 1)]
        begins = len(decode(passed_over).rstrip(_INCOMPLETE)) if passed_over else 0

        def stopped(end: int) -> bool:
            text = decode(self.tokens[start:end])
            return any(text.find(stop, max(0, begins - len(stop) + 1)) >= 0 for stop in stops)

        ends = range(self._read + 1, len(self.tokens) + 1)
        self._read = len(self.tokens)
        if ends and stopped(ends[-1]):
            end = ends[bisect.bisect_left(ends, True, key=stopped)]
            self.keep_first(end)
            self._cut = True
        return self._cut

    def stop_token(self, decode: Decode | None) -> int | None:
        """Returns the last token if it contains one of the stop strings by itself."""
        stops = self.request.sampling.stop_strings
        if not stops or decode is None:
            return None
        text = decode(self.tokens[-1:])
        return self.tokens[-1] if any(stop in text for stop in stops) else None

    @property
    def is_over(self) -> bool:
        """True if no more tokens are to be sampled; call `cut` first."""
        return self._stopped or self.left == 0

    @property
    def _stopped(self) -> bool:
        return self._cut or self.tokens[-1] in self.request.sampling.stop_ids

    def progress(self) -> CompletionProgress:
        """Returns the tokens so far; call `cut` first."""
        masks = before(np.concatenate(self.masks), len(self.tokens)) if self.masks else no_entries()
        over = bool(self.tokens) and self.is_over
        sampler = joined(self._samplers)
        return CompletionProgress(
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            masks,
            ("stop" if self._stopped else "length") if over else None,
            None if sampler is None else sampler.before(len(self.tokens)),
        )

    def finished(self) -> FinishedCompletion:
        """Returns the completion in its present state."""
        return FinishedCompletion.of(self.handle, self.progress(), self._recorded_routes())

    def _recorded_routes(self) -> RecordedRoutes | None:
        """Returns the experts of all tokens that were fed to the model, before the last token."""
        if not self._routes:
            return None
        parts, first = list(self._routes), self._first_fed
        if self.prompt_routes is not None:
            of_prefill, row = self.prompt_routes
            parts.insert(0, np.asarray(of_prefill)[row, :first])
            first = 0
        return RecordedRoutes(first, np.concatenate(parts)[: self.length - 1 - first])


class Pauses:
    """Tokens that were seen to contain a stop string by themselves.

    A row that samples such a token waits for the host. Otherwise it would decode in vain up to the
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
