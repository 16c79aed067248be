"""The rollout engine: continuous batching of requests over a fixed number of slots."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import jax
import numpy as np
from jaxtyping import Bool, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.rollout.admission import Admission
from rl_sync.rollout.batch import Batch, CompiledProgram
from rl_sync.rollout.buckets import next_smaller, row_bucket
from rl_sync.rollout.occupancy import Occupancy
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.request import Completion, CompletionRequest, require_servable
from rl_sync.rollout.sequence import Decode, GrowingSequence
from rl_sync.rollout.stats import Stats
from rl_sync.spelling import require_one_of
from rl_sync.types import Params

CachePolicy = Literal["keep", "recompute"]


class NonFiniteLogitsError(RuntimeError):
    """The weights give logits that are NaN or infinite, so that no token can be drawn."""


_REFILLED_SHARE = 8
_MOST_PAUSES = 32


class Engine:
    """Generates completions.

    The slot of a finished sequence goes to the next one in the queue. When the queue is empty, the
    batch shrinks with the number of live sequences. A sequence depends only on its prompt, its seed
    and the weights. It does not depend on the rest of the batch, its slot, or its start (except for
    the rounding of sums in batches of other sizes).

    Weights may change between two steps: sequences in flight go on with the new weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int = 64,
        *,
        max_length: int | None = None,
        chunk_tokens: int = 16,
        cache: CachePolicy = "keep",
        decode: Decode | None = None,
        seed: int = 0,
        layout: Layout,
    ) -> None:
        """Makes an engine without weights.

        Args:
          config: the model.
          slots: the most sequences that are decoded at once.
          max_length: the most tokens of a sequence, prompt included; the model's when left out.
          chunk_tokens: the most tokens that a sequence gets in a step.
          cache: what becomes of the keys and values of sequences that new weights find under way:
            `keep` them, or `recompute` them with the new weights.
          decode: from token ids to text; stop strings need it.
          seed: what the draws of requests without a seed depend on.
          layout: where the weights lie, and where slots are to lie.

        Raises:
          ValueError: a size that is not positive, or rows longer than the model's.
        """
        length = config.max_length if max_length is None else max_length
        if slots < 1 or chunk_tokens < 1:
            raise ValueError(f"slots={slots} and chunk_tokens={chunk_tokens} must be at least 1.")
        if not 1 <= length <= config.max_length:
            raise ValueError(
                f"max_length={length} must be from 1 to model.max_length={config.max_length}."
            )
        require_one_of("cache", cache, get_args(CachePolicy))
        self._config = config
        self._most_rows = slots
        self._length = length
        self._cache_policy = cache
        self._decode = decode
        self._seed = seed
        self._batch = Batch(config, length, chunk_tokens, layout)
        self._version = -1
        self._tickets = 0
        self._queue = Queue()
        self._occupancy = Occupancy()
        self._admission = Admission(self._batch, self._queue, self._occupancy)
        self._pauses: Int[np.ndarray, " N"] = np.full(_MOST_PAUSES, -1, np.int32)
        self._counted = Stats()

    @property
    def chunk_tokens(self) -> int:
        """The largest number of tokens that a sequence gets in a step."""
        return self._batch.chunk_tokens

    @property
    def slots(self) -> int:
        """The most sequences that are decoded at once."""
        return self._most_rows

    @property
    def version(self) -> int:
        """The version of the weights; −1 before any are loaded."""
        return self._version

    @property
    def unfinished(self) -> int:
        """Number of completions that wait or are in flight."""
        return self._queue.completions + len(self._occupancy.live)

    @property
    def programs(self) -> frozenset[CompiledProgram]:
        """The programs that the engine needed, whether it compiled them or found them compiled."""
        return frozenset(self._batch.compiled)

    @property
    def stats(self) -> Stats:
        """Counts of the engine's work so far."""
        compiled, secs = len(self._batch.compiled), self._batch.compile_secs
        return dataclasses.replace(self._counted, programs=compiled, compile_secs=secs)

    def load(self, params: Params, version: int) -> None:
        """Takes new weights; unfinished sequences go on with them.

        The arrays must not be donated before the next `load`, or the engine's last use.
        """
        self._batch.load(params)
        self._version = version
        self._queue.forget_prefixes()
        live = self._occupancy.live
        if live and self._cache_policy == "recompute":
            started, compiled = time.monotonic(), self._batch.compile_secs
            lengths = [sequence.length for sequence in live.values()]
            self._batch.recompute(max(lengths))
            secs = time.monotonic() - started - (self._batch.compile_secs - compiled)
            self._counted += Stats(prefill_tokens=sum(lengths), prefill_secs=secs)

    def submit(self, requests: Sequence[CompletionRequest]) -> list[int]:
        """Puts requests at the end of the queue.

        Returns:
          Their tickets, which their completions carry.

        Raises:
          ValueError: a request can never be served; then none is taken.
        """
        for request in requests:
            require_servable(request, self._config, self._length, self._decode is not None)
        first = self._tickets
        for request in requests:
            seed = (self._seed, self._tickets) if request.seed is None else request.seed
            self._queue.append(Waiting(self._tickets, request, seed))
            self._batch.make_room_for_stop_ids(len(request.sampling.stop_ids))
            self._tickets += 1
        return list(range(first, self._tickets))

    def step(self) -> list[Completion]:
        """Starts sequences in free slots, draws a chunk, and returns finished completions.

        Raises:
          ValueError: there are no weights.
          NonFiniteLogitsError: the weights are broken, or too large for the model's dtype.
        """
        if not self._batch.loaded:
            raise ValueError("The engine has no weights: call load(params, version) first.")
        if not self.unfinished:
            return []
        started, compiled = time.monotonic(), self._batch.compile_secs
        self._fit()
        prefixes, prompt_tokens = self._admission.admit()
        live = self._occupancy.live
        chunk = self._batch.decode(
            self._mask(live),
            self._enough(live),
            self._pauses.copy(),
            longest=max(s.length for s in live.values()),
        )
        # The device computes from here on. Meanwhile the host looks for stop strings in the last
        # chunk's text. Tokens that are now drawn after a stop string are dropped.
        finished = self._take_out({slot: s for slot, s in live.items() if s.cut(self._decode)})
        jax.block_until_ready([prefix.tokens for prefix in prefixes])
        prefilled = time.monotonic()
        tokens, logprobs, goes_on, steps = jax.device_get(chunk)
        ended = time.monotonic()
        done = {}
        for slot, sequence in self._occupancy.live.items():
            drawn = int((tokens[:steps, slot] >= 0).sum())
            if not np.isfinite(logprobs[:drawn, slot]).all():
                raise NonFiniteLogitsError(
                    "The model's logits are NaN or infinite: its weights are, or what it computes"
                    f" with them in {self._config.dtype} is."
                )
            sequence.append(tokens[:drawn, slot], logprobs[:drawn, slot], self._version)
            if not goes_on[slot]:
                sequence.cut(self._decode)
                if sequence.is_over:
                    done[slot] = sequence
        finished += self._take_out(done)
        compile_secs = self._batch.compile_secs - compiled
        prefill_secs = max(0.0, prefilled - started - compile_secs) if prefixes else 0.0
        self._counted += Stats(
            completions=len(finished),
            prefill_tokens=prompt_tokens,
            prefill_secs=prefill_secs,
            decode_tokens=int((tokens >= 0).sum()),
            decode_secs=max(0.0, ended - started - compile_secs - prefill_secs),
            steps=int(steps),
            row_steps=int(steps) * self._batch.rows,
            cache_filled=sum(sequence.length for sequence in live.values()),
            cache_allocated=self._batch.rows * self._length,
        )
        return finished

    def advance(
        self, budget_tokens: int | None = None, between: Callable[[], None] | None = None
    ) -> list[Completion]:
        """Takes steps until nothing is left, or so many tokens were drawn.

        Unfinished sequences go on with the next step. The budget is checked between steps.

        Args:
          between: a function called after each step that leaves unfinished sequences; it may `load`
            new weights.
        """
        before, finished = self._counted.decode_tokens, []
        while self.unfinished:
            finished += self.step()
            drawn = self._counted.decode_tokens - before
            if budget_tokens is not None and drawn >= budget_tokens:
                break
            if between is not None and self.unfinished:
                between()
        return finished

    def generate(
        self, requests: Sequence[CompletionRequest], between: Callable[[], None] | None = None
    ) -> list[list[Completion]]:
        """Completes requests: returns a list of completions for each, in order.

        Args:
          between: see `advance`.

        Raises:
          ValueError: other requests are unfinished, or a request can never be served.
        """
        if self.unfinished:
            raise ValueError(
                f"{self.unfinished} completions are unfinished, and generate would drop them: use"
                " submit and step."
            )
        tickets = self.submit(requests)
        found = sorted(self.advance(between=between), key=lambda completion: completion.index)
        by_ticket: dict[int, list[Completion]] = {ticket: [] for ticket in tickets}
        for completion in found:
            by_ticket[completion.ticket].append(completion)
        return list(by_ticket.values())

    def _mask(self, live: dict[int, GrowingSequence]) -> Bool[np.ndarray, " B"]:
        mask = np.zeros(self._batch.rows, bool)
        mask[list(live)] = True
        return mask

    def _enough(self, live: dict[int, GrowingSequence]) -> int:
        """Returns the number of live rows at which a chunk ends early.

        It ends early so that other requests can start, or the batch can shrink. While requests
        wait, it does not end for every single row: each end costs a round trip.
        """
        if self._queue:
            rows = self._batch.rows
            return min(len(live) - 1, rows - max(1, rows // _REFILLED_SHARE))
        smaller = next_smaller(self._batch.rows, self._most_rows)
        return smaller if len(live) > smaller and self._may_shrink(live) else 0

    def _may_shrink(self, live: dict[int, GrowingSequence]) -> bool:
        """Says whether more than a chunk is to come, so that compiling a smaller batch pays."""
        longest = max((sequence.left for sequence in live.values()), default=0)
        return max(longest, self._queue.most_new_tokens) > self.chunk_tokens

    def _take_out(self, done: dict[int, GrowingSequence]) -> list[Completion]:
        for slot, sequence in done.items():
            self._occupancy.finish(slot)
            self._learn(sequence.stop_token(self._decode))
        return [sequence.finished() for sequence in done.values()]

    def _learn(self, token: int | None) -> None:
        """Remembers a token that has a stop string: rows that draw it soon wait for the host.

        Otherwise they would draw tokens in vain up to the end of the chunk.
        """
        free = np.flatnonzero(self._pauses < 0)
        if token is not None and free.size and token not in self._pauses:
            self._pauses[free[0]] = token

    def _fit(self) -> None:
        """Resizes the batch to the number of unfinished sequences."""
        rows = row_bucket(self.unfinished, self._most_rows)
        may_shrink = self._may_shrink(self._occupancy.live)
        if rows > self._batch.rows or (rows < self._batch.rows and may_shrink):
            self._batch.resize(rows, self._occupancy.resize(rows))
