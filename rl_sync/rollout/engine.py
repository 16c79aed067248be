"""The rollout engine: continuous batching of requests over a fixed number of slots."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from rl_sync.models.cache import reads_by_pages
from rl_sync.models.config import ModelConfig
from rl_sync.models.kernels.decode import reads_what_is_filled
from rl_sync.models.sharding import Layout
from rl_sync.rollout.batch import Batch
from rl_sync.rollout.buckets import Sizes
from rl_sync.rollout.continuation import Continuations
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.engine_options import DEFAULTS, EngineOptions
from rl_sync.rollout.engine_programs import CompiledProgram, EnginePrograms
from rl_sync.rollout.kv_offload import KvOffload
from rl_sync.rollout.paging.page_supply import PageSupply
from rl_sync.rollout.paging.page_table import PageTable, pages_of
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.request import (
    CompletionRequest,
    FinishedCompletion,
    Handle,
    require_servable,
)
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.rollout.sequence import GrowingSequence, Pauses
from rl_sync.rollout.slot_admission import Admission
from rl_sync.rollout.slot_table import SlotTable
from rl_sync.rollout.slots import Chunk
from rl_sync.rollout.speculation.draft_history import DraftHistory, reference_tokens
from rl_sync.rollout.speculation.draft_pace import DraftPace
from rl_sync.rollout.stats import Stats
from rl_sync.sequence_images import PooledImages, SequenceImages, after
from rl_sync.token_records import SamplerRecord
from rl_sync.types import CompletionProgress, Params


class NonFiniteLogitsError(RuntimeError):
    """The weights give logits that are NaN or infinite, so that no token can be sampled."""


class Engine(RolloutEngine):
    """Generates completions.

    The slot of a finished sequence goes to the next one in the queue. When the queue is empty, the
    batch shrinks with the number of live sequences. A sequence depends only on its prompt, its seed
    and the weights. It does not depend on the rest of the batch, its slot, or its start (except for
    the rounding of sums in batches of other sizes).

    Weights may change between two steps: sequences in flight continue with the new weights.

    Completions may be held, so that they can continue after given tokens: the turns of an episode.
    A held sequence is parked in its slot with its cache. When others need the slot, the sequence
    that was held longest is evicted. Its cache is offloaded to host memory, and goes into a slot
    again when the sequence continues; or `extend` prefills the whole sequence again, with the same
    result.
    """

    def __init__(
        self, config: ModelConfig, layout: Layout, options: EngineOptions = DEFAULTS
    ) -> None:
        """Makes an engine without weights.

        Args:
          config: model config.
          layout: sharding of the weights and the slots.

        Raises:
          ValueError: rows are longer than the model's maximum, or memory is too small for them.
        """
        length = _length(config, options)
        self._config, self._options = config, options
        pages = None
        if options.cache_bytes is not None:
            pages = pages_of(
                config, layout, slots=options.slots, length=length, cache_bytes=options.cache_bytes
            )
        shards = 1 if pages is None else len(pages.pools)
        sizes = Sizes(
            options.slots,
            length,
            paged=reads_by_pages(config)
            or reads_what_is_filled(config, layout, drafts=options.speculation != "off"),
            shards=shards,
            divisor=layout.row_divisor,
        )
        self._batch = Batch(config, sizes, layout, options, pages)
        self._version, self._tickets, self._chunks = -1, 0, 0
        self._queue = Queue()
        self._aside = KvOffload(self._batch, options.kv_offload_bytes)
        self._occupancy = SlotTable(self._aside.put, shards)
        self._continuations = Continuations(
            batch=self._batch,
            queue=self._queue,
            occupancy=self._occupancy,
            aside=self._aside,
            most_stepped=min(options.stepped_tokens, length),
        )
        self._supply = None if pages is None else self._pages_for_sequences(pages)
        self._admission = Admission(
            self._batch, self._queue, self._occupancy, self._continuations, self._supply
        )
        self._pauses, self._counted = Pauses(), Stats()
        self._history = None
        if options.speculation != "off":
            self._history = DraftHistory(self._reference_tokens, options.draft_bytes)
        self._pace = DraftPace() if options.speculation == "auto" else None

    def _pages_for_sequences(self, pages: PageTable) -> PageSupply:
        options = self._options
        return PageSupply(
            table=pages,
            occupancy=self._occupancy,
            queue=self._queue,
            aside=self._aside,
            chunk_tokens=options.chunk_tokens,
            most_stepped=self._continuations.most_stepped,
            # Of a prompt that decode steps read in part, no experts are known.
            reuses=options.reuses_prefixes and not options.records_routes,
        )

    @property
    def _reference_tokens(self) -> int:
        return reference_tokens(self._batch.length, self._options.draft_bytes)

    @property
    def chunk_tokens(self) -> int:
        """See `RolloutEngine`."""
        return self._options.chunk_tokens

    @property
    def slots(self) -> int:
        """See `RolloutEngine`."""
        return self._batch.sizes.slots

    @property
    def version(self) -> int:
        """See `RolloutEngine`."""
        return self._version

    @property
    def unfinished(self) -> int:
        """See `RolloutEngine`."""
        return self._queue.completions + len(self._occupancy.live)

    @property
    def tokens_in_flight(self) -> int:
        """See `RolloutEngine`."""
        growing = (*self._occupancy.live.values(), *self._queue.resumed)
        return sum(len(one.tokens) + one.surplus for one in growing)

    @property
    def held(self) -> tuple[Handle, ...]:
        """Handles of the held completions, longest held first."""
        return self._occupancy.held

    @property
    def programs(self) -> frozenset[CompiledProgram]:
        """Programs that the engine has used, whether it compiled them or found them compiled."""
        return frozenset(self._batch.compiled)

    def possible(self, params: Params) -> EnginePrograms:
        """Returns all programs that weights of these shapes, dtypes and shardings may need."""
        batch = self._batch
        return EnginePrograms(
            config=self._config,
            sizes=batch.sizes,
            chunk_tokens=self._options.chunk_tokens,
            most_given=self._continuations.most_stepped,
            layout=batch.layout,
            records_routes=self._options.records_routes,
            sampler=self._options.sampler,
            speculation=self._options.speculation,
            draft_tokens=self._options.draft_tokens,
            reference_tokens=self._reference_tokens,
            pages=batch.pages,
            params=params,
        )

    @property
    def stats(self) -> Stats:
        """Counts of the engine's work so far."""
        compiled, secs = len(self._batch.compiled), self._batch.compile_secs
        return dataclasses.replace(
            self._counted,
            evictions=self._occupancy.evictions,
            preemptions=0 if self._supply is None else self._supply.preemptions,
            set_aside=self._aside.set_aside,
            restored=self._aside.restored,
            dropped=self._aside.dropped,
            programs=compiled,
            compile_secs=secs,
        )

    def load(self, params: Params, version: int) -> None:
        """Takes new weights; unfinished and held sequences continue with them.

        The arrays must not be donated before the next `load`, or the engine's last use.
        """
        if self._version < 0:  # Earlier weights only compiled programs; their tower is another.
            self._batch.features.forget()
        self._batch.load(params)
        self._version = version
        self._queue.forget_prefixes()
        if self._supply is not None:
            self._supply.take_weights(version)
        if self._options.cache == "keep":
            return
        self._aside.drop_all()
        if sequences := self._occupancy.tokens:
            started, compiled = time.monotonic(), self._batch.compile_secs
            self._batch.recompute(sequences, self._occupancy.images)
            secs = time.monotonic() - started - (self._batch.compile_secs - compiled)
            tokens = sum(map(len, sequences.values()))
            self._counted += Stats(prefill_tokens=tokens, prefill_secs=secs)

    def submit(self, requests: Sequence[CompletionRequest]) -> list[int]:
        """Puts requests at the end of the queue; see `RolloutEngine`."""
        for request in requests:
            self._require_servable(request)
        accepted = [self._accept(request) for request in requests]
        for waiting in accepted:
            for one in (*self._begun(waiting), waiting):
                if one.left:
                    self._queue.append(one)
        return [waiting.ticket for waiting in accepted]

    def extend(
        self,
        handle: Handle,
        tokens: Int[np.ndarray, " T"],
        sampling: Sampling,
        *,
        seed: tuple[int, ...] | None = None,
        held: bool = False,
        images: SequenceImages | None = None,
    ) -> int:
        """Continues a held completion after given tokens; see `RolloutEngine`.

        The result equals that of a request whose prompt is the sequence so far and then the given
        tokens, except for rounding, and for caches of older weights that `keep` has kept.
        """
        before = self._occupancy.find(handle)
        given = np.asarray(tokens, np.int32)
        whole = np.concatenate([before.tokens, given])
        shown = after(before.images, len(before.tokens), images)
        request = CompletionRequest(whole, sampling, seed=seed, held=held, images=shown)
        self._require_servable(request)
        self._occupancy.release(handle)
        waiting = self._accept(request)
        self._continuations.begin(before, waiting, given)
        return waiting.ticket

    def features(self, images: PooledImages) -> Float[np.ndarray, "N M W"]:
        """See `RolloutEngine`."""
        return self._batch.features.of_tiles(images.digests, images.tiles)

    def release(self, handle: Handle) -> None:
        """See `RolloutEngine`."""
        self._aside.forget(self._occupancy.find(handle).copy)
        self._occupancy.release(handle)
        if self._supply is not None:
            self._supply.tidy()

    def rest(self) -> None:
        """See `RolloutEngine`."""
        if self.unfinished or self._occupancy.parked:
            return
        if self._supply is not None:
            self._supply.tidy()
        self._batch.rest()
        self._occupancy.resize(0)

    def unload(self) -> None:
        """See `RolloutEngine`."""
        if not (self.unfinished or self.held):
            self._batch.unload()

    def step(self) -> list[FinishedCompletion]:
        """Starts sequences in free slots, decodes a chunk, and returns finished completions.

        Raises:
          ValueError: no weights are loaded.
          NonFiniteLogitsError: the weights are broken, or too large for the model's dtype.
        """
        if not self._batch.loaded:
            raise ValueError("The engine has no weights: call load(params, version) first.")
        if not self.unfinished:
            return []
        started, compiled = time.monotonic(), self._batch.compile_secs
        prompts, use = self._start()
        live = self._occupancy.live
        chunk = self._batch.decode(
            self._occupancy.mask,
            self._admission.enough(),
            self._pauses.tokens,
            longest=max(s.length for s in live.values()),
            references=self._references(live),
        )
        use += self._cache_use()
        self._chunks += 1
        # The device computes from here on. Meanwhile the host looks for stop strings in the
        # previous chunk's text. Tokens that are now sampled after a stop string are dropped.
        finished = self._take_out(
            {slot: s for slot, s in live.items() if s.cut(self._options.decode)}
        )
        jax.block_until_ready(prompts)
        prefilled = time.monotonic()
        read = jax.device_get(chunk)
        ended = time.monotonic()
        drawn = (np.asarray(read.tokens) >= 0).sum(axis=0)
        surplus = int(drawn.sum() - drawn[[*self._occupancy.live]].sum())
        finished += self._take_out(self._append(read))
        compile_secs = self._batch.compile_secs - compiled
        prefill_secs = max(0.0, prefilled - started - compile_secs) if prompts else 0.0
        decode_secs = max(0.0, ended - started - compile_secs - prefill_secs)
        if self._pace is not None and not compile_secs:
            self._pace.record(int(drawn.sum()), decode_secs)
        self._counted += use + self._steps_of(read)
        self._counted += Stats(
            completions=len(finished),
            prefill_secs=prefill_secs,
            decode_tokens=int(drawn.sum()),
            surplus_tokens=surplus,
            decode_secs=decode_secs,
        )
        return finished

    def _steps_of(self, chunk: Chunk) -> Stats:
        """Counts the steps and the drafts of a chunk."""
        return Stats(
            steps=int(chunk.steps),
            row_steps=int(chunk.steps) * self._batch.rows,
            drafted_tokens=int(chunk.drafted),
            accepted_tokens=int(chunk.accepted),
            stretch_tokens=int(chunk.fed.max()),
        )

    def _references(self, live: Mapping[int, GrowingSequence]) -> Int[np.ndarray, "B E"] | None:
        """Returns the texts for the next chunk's drafts; None if it has no drafts."""
        if self._history is None or not (self._pace is None or self._pace.drafts):
            return None
        return self._history.references(live, self._batch.rows)

    def _start(self) -> tuple[list[Int[Array, "R P"]], Stats]:
        """Chooses the number of slots, and starts waiting sequences in the free ones.

        Returns:
          Tokens of each prefix that the device computes, and counts of the work.
        """
        stepped, reused = self._continuations.flush()
        if self._supply is not None:
            self._supply.supply()
        rows = self._admission.rows(self._chunks)
        if rows != self._batch.rows:
            self._batch.resize(rows, self._occupancy.resize(rows))
        admitted = self._admission.admit()
        restepped, restored = self._continuations.flush()
        stepped += restepped + admitted.stepped_tokens
        work = Stats(
            prefill_tokens=admitted.prompt_tokens + stepped,
            stepped_tokens=stepped,
            reused_tokens=reused + restored + admitted.reused_tokens,
        )
        return admitted.prompts, work

    def _append(self, chunk: Chunk) -> dict[int, GrowingSequence]:
        """Appends a chunk, read from the device, to the live sequences; returns those it ends."""
        most, counts = int(chunk.fed.max()), chunk.fed.tolist()
        self._require_finite(chunk.logprobs[:most])
        # Converting all rows at once takes a third of the time that one row after the other takes.
        tokens, logprobs = chunk.tokens[:most].T.tolist(), chunk.logprobs[:most].T.tolist()
        done = {}
        for slot, sequence in self._occupancy.live.items():
            fed = counts[slot]
            drawn = tokens[slot][:fed]
            sequence.append(
                drawn,
                logprobs[slot][:fed],
                self._version,
                None if chunk.kept is None else np.asarray(chunk.kept[:fed, slot]),
                self._config.vocab_size,
            )
            if chunk.routes is not None:
                sequence.record_routes(np.asarray(chunk.routes[:fed, slot]))
            if chunk.sampler is not None:
                of_slot = (np.asarray(values[:fed, slot]) for values in chunk.sampler)
                sequence.record_sampler(SamplerRecord(*of_slot), drawn)
            if not chunk.live[slot]:
                sequence.cut(self._options.decode)
                if sequence.is_over:
                    done[slot] = sequence
        return done

    def _require_finite(self, logprobs: Float[Array, "C B"]) -> None:
        if np.isfinite(logprobs).all():
            return
        dtype = self._config.dtype
        remedy = (
            " float16 has no values beyond 65,504: use bfloat16 or float32 (model.dtype;"
            " explorer.dtype and trainer.compute_dtype for one role)."
        )
        raise NonFiniteLogitsError(
            "The model's logits are NaN or infinite: either its weights are, or values"
            f" computed with them in {dtype} are.{remedy if dtype == 'float16' else ''}"
        )

    def progress(self, handles: Collection[Handle]) -> dict[Handle, CompletionProgress]:
        """See `RolloutEngine`."""
        found = {}
        for sequence in (*self._occupancy.live.values(), *self._queue.resumed):
            if sequence.handle in handles:
                sequence.cut(self._options.decode)  # Drop what follows a stop string.
                found[sequence.handle] = sequence.progress()
        return found

    def _cache_use(self) -> Stats:
        """Counts the use of the cache in the next chunk."""
        if (pages := self._batch.pages) is not None:
            return Stats(
                cache_filled=pages.used * pages.page_tokens,
                cache_shared=pages.shared * pages.page_tokens,
                cache_allocated=pages.total * pages.page_tokens,
            )
        filled = sum(map(len, self._occupancy.tokens.values()))
        return Stats(cache_filled=filled, cache_allocated=self._batch.rows * self._batch.length)

    def _take_out(self, done: dict[int, GrowingSequence]) -> list[FinishedCompletion]:
        for slot, sequence in done.items():
            self._occupancy.finish(slot, self._chunks)
            self._pauses.learn(sequence.stop_token(self._options.decode))
            self._counted += Stats(surplus_tokens=sequence.surplus)
            if self._history is not None:
                self._history.add(sequence)
        if self._supply is not None:
            self._supply.tidy()
        return [sequence.finished() for sequence in done.values()]

    def _require_servable(self, request: CompletionRequest) -> None:
        require_servable(
            request, self._config, self._batch.length, self._options.decode is not None
        )

    def _begun(self, waiting: Waiting) -> list[Waiting]:
        """Returns the completions of a request that go on after the tokens that they have."""
        ticket, request, seed = waiting.ticket, waiting.request, waiting.seed
        going_on = (Handle(ticket, i) for i, one in request.begun.items() if one.finish is None)
        return [
            Waiting(ticket, request, seed, resumed=GrowingSequence.going_on(one, request, seed))
            for one in going_on
        ]

    def _accept(self, request: CompletionRequest) -> Waiting:
        """Gives a request a ticket, and a seed if it has none."""
        ticket = self._tickets
        self._tickets += 1
        self._batch.make_room_for_stop_ids(len(request.sampling.stop_ids))
        self._batch.changes = self._batch.changes.with_those(LogitsProcessors.of(request.sampling))
        seed = (self._options.seed, ticket) if request.seed is None else request.seed
        return Waiting(ticket, request, seed)


def _length(config: ModelConfig, options: EngineOptions) -> int:
    """Returns the maximum number of tokens of a sequence."""
    length = config.max_length if options.max_length is None else options.max_length
    if not 1 <= length <= config.max_length:
        raise ValueError(
            f"max_length={length} must be from 1 to model.max_length={config.max_length}."
        )
    return length
