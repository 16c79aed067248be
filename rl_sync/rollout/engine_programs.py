"""Programs that an engine may need for given requests, each of which can be compiled alone.

A program is a function for given sizes of its arguments. `Batch` calls the functions with arrays,
and `EnginePrograms` lowers them with the shapes of these arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rl_sync.models.cache import KVCache, map_with_axes
from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import PagedCache, PageFills, page_axes
from rl_sync.models.sharding import Layout, using
from rl_sync.models.vision.projector import Seen
from rl_sync.rollout import slots as core
from rl_sync.rollout.buckets import Sizes, power_of_two
from rl_sync.rollout.image_features import (
    MOST_TILES,
    abstract_seen,
    blank_tiles,
    encoded,
    tile_buckets,
)
from rl_sync.rollout.paging import paged_slots
from rl_sync.rollout.paging.page_table import PageTable, most_fills
from rl_sync.rollout.sampling import ALL_CHANGES, LogitsProcessors, Sampling, knobs
from rl_sync.rollout.sequence import Pauses
from rl_sync.rollout.slots import ChunkProgram, Prefix, SlotRows, Slots
from rl_sync.rollout.speculation.draft_pace import Speculation
from rl_sync.token_records import SamplerShape
from rl_sync.types import Params, as_input

LEAST_STOP_IDS = 4
DECODING: dict[Speculation, tuple[str, ...]] = {
    "off": ("decode",),
    "always": ("decode_drafts",),
    "auto": ("decode_drafts", "decode"),
}
"""Names of the programs that decode, by `EngineOptions.speculation`."""


class CompiledProgram(NamedTuple):
    """A compiled program: a function for given sizes of its arguments."""

    name: str
    size: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Requests:
    """Properties of an engine's future requests that its programs depend on.

    Attributes:
      prompt_tokens: lengths of prompts.
      prompts: maximum number of requests that wait at once.
      new_tokens: maximum number of tokens of a completion.
      stop_ids: maximum number of stop ids of a completion.
      changes: kinds of logits processors that the requests ask for.
      held: whether completions are held and extended.
      offloads_kv: whether caches of held completions are offloaded to host memory.
      recomputes: whether new weights recompute caches.
      tiles: maximum number of tiles of a prompt's images.
    """

    prompt_tokens: frozenset[int]
    prompts: int
    new_tokens: int
    stop_ids: int = LEAST_STOP_IDS
    changes: LogitsProcessors = ALL_CHANGES
    held: bool = False
    offloads_kv: bool = False
    recomputes: bool = False
    tiles: int = 0


def stop_ids_bucket(count: int) -> int:
    """Returns the number of stop ids that a row has room for, given the number that it needs."""
    return max(power_of_two(max(count, 1)), LEAST_STOP_IDS)


def _prefills(sizes: Sizes, widths: Iterable[int], prompts: int) -> Iterator[tuple[int, int]]:
    """Yields rows and positions of prefills, those with the most prompts first."""
    for tokens in widths:
        counts = {sizes.prefill_rows(count, tokens) for count in range(1, prompts + 1)}
        yield from ((rows, tokens) for rows in sorted(counts, reverse=True))


def _spans(sizes: Sizes, chunk_tokens: int, requests: Requests) -> list[int]:
    """Lists the spans from the shortest prompt's to the longest sequence's."""
    shortest = min(requests.prompt_tokens, default=1)
    longest = max(requests.prompt_tokens, default=1) + requests.new_tokens - 1
    if requests.held:
        longest = sizes.length
    least, most = (sizes.span_bucket(tokens + chunk_tokens) for tokens in (shortest, longest))
    return [span for span in reversed(sizes.spans) if least <= span <= most]


@dataclasses.dataclass(frozen=True)
class EnginePrograms:
    """The programs of an engine, each of which can be lowered from shapes alone.

    Attributes:
      config: model config.
      sizes: sizes of the engine's programs.
      chunk_tokens: maximum decode steps of a chunk.
      most_given: maximum number of tokens of an extension that decode steps read.
      layout: sharding of the weights and the slots.
      pages: pages of each slot; None if each slot has a cache of its own.
      params: abstract parameters: shapes, dtypes and shardings of the weights.
      records_routes, sampler, speculation, draft_tokens: see `EngineOptions`.
      reference_tokens: number of tokens of references that a slot has room for.
    """

    config: ModelConfig
    sizes: Sizes
    chunk_tokens: int
    most_given: int
    layout: Layout
    pages: PageTable | None
    params: Params
    records_routes: bool = False
    sampler: SamplerShape | None = None
    speculation: Speculation = "off"
    draft_tokens: int = 0
    reference_tokens: int = 0

    def listed(self, requests: Requests) -> list[CompiledProgram]:
        """Lists the programs that an engine may need, roughly in the order of their first use.

        A full batch comes first, with growing spans; then the smaller batches that it shrinks to.
        An engine needs no other program. Depending on the lengths of completions it may need fewer.
        """
        sizes, width = self.sizes, stop_ids_bucket(requests.stop_ids)
        prompts = sizes.prompt_buckets(requests.prompt_tokens)
        prefills = list(_prefills(sizes, prompts, min(requests.prompts, sizes.slots)))
        spans = _spans(sizes, self.chunk_tokens, requests)
        found: dict[CompiledProgram, None] = {}

        def add(name: str, *size: int) -> None:
            found[CompiledProgram(name, size)] = None

        for tiles in tile_buckets(MOST_TILES if requests.tiles else 0):
            add("image_features", tiles)
        if self.pages is not None:
            add("empty_pool", self.pages.total)
        for number, rows in enumerate(sizes.rows):
            for larger in reversed(sizes.rows[:number]):
                add("rearrange", larger, rows, width)
            add("empty_slots", rows, width)
            for read, tokens in prefills:
                add("prefill", read, tokens)
                for tiles in tile_buckets(requests.tiles):
                    add("prefill", read, tokens, tiles)
                add("insert", rows, read, tokens, width)
            if requests.held:
                add("extend", rows, self.most_given, width)
            for name, span in itertools.product(DECODING[self.speculation], spans):
                add(name, rows, span, width, *requests.changes)
        for larger, smaller in itertools.combinations(sizes.rows, 2):
            add("rearrange", smaller, larger, width)
        held = sizes.prompt_buckets(range(min(requests.prompt_tokens, default=1), sizes.length + 1))
        if self.pages is not None:
            self._add_paged(add, requests, held)
            return list(found)
        for rows, tokens in itertools.product(sizes.rows, held):
            if requests.offloads_kv:
                add("copy_cache", rows, tokens, width)
                add("insert_copy", rows, 1, tokens, width)
            if requests.recomputes:
                size = rows, sizes.recomputed_rows(rows, tokens), tokens, width
                add("recompute", *size)
                for tiles in tile_buckets(requests.tiles):
                    add("recompute", *size, tiles)
        return list(found)

    def _add_paged(self, add: Callable[..., None], requests: Requests, held: Sequence[int]) -> None:
        """Adds the programs of a cache in pages for interrupted sequences and known prefixes.

        Args:
          held: padded lengths of sequences that are interrupted, held or recomputed.
        """
        assert self.pages is not None
        width, page_tokens = stop_ids_bucket(requests.stop_ids), self.pages.page_tokens
        known = self.sizes.prompt_buckets(n for n in requests.prompt_tokens if n > page_tokens)
        for rows in self.sizes.rows:
            for tokens in known:
                add("insert_shared", rows, rows, tokens, width)
            for read, tokens in _prefills(self.sizes, held, self.sizes.slots):
                add("prefill", read, tokens)
                for tiles in tile_buckets(requests.tiles):
                    add("prefill", read, tokens, tiles)
                add("insert", rows, read, tokens, width)
            for tokens in held if requests.offloads_kv else ():
                add("copy_pages", tokens)
                add("insert_copy", rows, 1, tokens, width)
            if requests.offloads_kv:
                add("extend", rows, self.most_given, width)

    def lower(self, program: CompiledProgram) -> jax.stages.Lowered:
        """Lowers a program for arguments of the same shapes as in the engine's calls."""
        with using(self.layout):
            return self._ways[program.name](*program.size)

    @property
    def _ways(self) -> dict[str, Callable[..., jax.stages.Lowered]]:
        return {
            "image_features": self._image_features,
            "empty_slots": self._empty_slots,
            "prefill": self._prefill,
            "insert": self._insert,
            "insert_copy": self._insert_copy,
            "extend": self._extend,
            "decode": self._decode,
            "decode_drafts": functools.partial(self._decode, drafts=True),
            "rearrange": self._rearrange,
            "copy_cache": self._copy_cache,
            "recompute": self._recompute,
            "empty_pool": self._empty_pool,
            "insert_shared": self._insert_shared,
            "copy_pages": self._copy_pages,
        }

    def _empty_slots(self, rows: int, stop_ids: int) -> jax.stages.Lowered:
        paged = self.pages is not None
        return core.empty_slots.lower(self.config, rows, self.sizes.length, stop_ids, paged)

    def _empty_pool(self, pages: int) -> jax.stages.Lowered:
        return paged_slots.empty_pool.lower(self.config, pages)

    def _image_features(self, tiles: int) -> jax.stages.Lowered:
        return encoded.lower(self.config, self.params, blank_tiles(self.config, tiles))

    def _prefill(self, rows: int, tokens: int, tiles: int = 0) -> jax.stages.Lowered:
        with using(self.layout.of_positions):
            return core.prefill.lower(
                self.config,
                self.params,
                _given(rows, tokens),
                records_routes=self.records_routes,
                images=self._seen(rows, tokens, tiles),
            )

    def _seen(self, rows: int, tokens: int, tiles: int) -> Seen | None:
        return abstract_seen(self.config, rows, tokens, tiles) if tiles else None

    def _insert(self, rows: int, read: int, tokens: int, stop_ids: int) -> jax.stages.Lowered:
        return self._lower_insert(rows, self._prefix(read, tokens), stop_ids)

    def _insert_copy(self, rows: int, _: int, tokens: int, stop_ids: int) -> jax.stages.Lowered:
        prefix = self._prefix(1, tokens)
        if self.pages is not None:
            pool, pages = self._pool(), _given(self.pages.count(tokens))
            copy = jax.eval_shape(
                lambda pool, pages: paged_slots.copy_pages_of(pool, pages, tokens), pool, pages
            )
            prefix = Prefix(_given(1, tokens), self._cache(copy))
        return self._lower_insert(rows, prefix, stop_ids)

    def _insert_shared(self, rows: int, _: int, tokens: int, stop_ids: int) -> jax.stages.Lowered:
        return self._lower_insert(rows, Prefix(_given(rows, tokens), None), stop_ids)

    def _lower_insert(self, rows: int, prefix: Prefix, stop_ids: int) -> jax.stages.Lowered:
        whole, new = _given(rows), _rows(rows, stop_ids)
        if self.pages is None:
            slots = self._slots(rows, stop_ids)
            return core.insert.lower(slots, prefix, _given(), whole, whole, new)
        prompts, tokens = prefix.tokens.shape
        shares = len(self.pages.pools)
        fills = _given(shares * most_fills(self.pages.count(tokens), prompts, rows // shares))
        slots = self._paged_slots(rows, stop_ids)
        to_fill = PageFills(_given(shares), fills, fills, fills)
        return paged_slots.insert_pages.lower(slots, prefix, whole, whole, new, to_fill)

    def _extend(self, rows: int, most_given: int, stop_ids: int) -> jax.stages.Lowered:
        new, targets = _rows(rows, stop_ids), _given(rows)
        return core.extend.lower(
            self._slots(rows, stop_ids), _given(rows, most_given), targets, new
        )

    def _decode(
        self, rows: int, span: int, stop_ids: int, *changes: bool, drafts: bool = False
    ) -> jax.stages.Lowered:
        return core.decode_chunk.lower(
            self.config,
            self.params,
            self._paged_slots(rows, stop_ids, reads=True),
            jax.ShapeDtypeStruct((rows,), jnp.bool_),
            _given(),
            Pauses().tokens,
            ChunkProgram(
                span,
                self.chunk_tokens,
                LogitsProcessors(*changes),
                self.records_routes,
                self.sampler,
                self.draft_tokens if drafts else 0,
            ),
            _given(rows, self.reference_tokens) if drafts else None,
        )

    def _rearrange(self, rows: int, after: int, stop_ids: int) -> jax.stages.Lowered:
        return core.rearrange.lower(self._slots(rows, stop_ids), _given(after))

    def _copy_cache(self, rows: int, span: int, stop_ids: int) -> jax.stages.Lowered:
        return core.copy_cache.lower(self._slots(rows, stop_ids), _given(1), span=span)

    def _copy_pages(self, span: int) -> jax.stages.Lowered:
        assert self.pages is not None
        pages = _given(self.pages.count(span))
        return paged_slots.copy_pages_of.lower(self._pool(), pages, span=span)

    def _recompute(
        self, rows: int, count: int, span: int, stop_ids: int, tiles: int = 0
    ) -> jax.stages.Lowered:
        return core.recompute.lower(
            self.config,
            self.params,
            self._slots(rows, stop_ids),
            _given(),
            count=count,
            span=span,
            images=self._seen(count, span, tiles),
        )

    def _slots(self, rows: int, stop_ids: int) -> Slots:
        """Returns abstract slots, sharded as the engine keeps them between two calls."""
        paged = self.pages is not None
        abstract = jax.eval_shape(
            lambda: core.empty_slots(self.config, rows, self.sizes.length, stop_ids, paged)
        )
        by_rows: Any = jax.tree.map(lambda x: self.layout.abstract(x, ("batch",)), abstract)
        cache = None if abstract.cache is None else self._cache(abstract.cache)
        return Slots(by_rows.tokens, cache, by_rows.rows)

    def _paged_slots(self, rows: int, stop_ids: int, reads: bool = False) -> Slots:
        """Returns abstract slots with their cache, and with the pages of each row if it is read."""
        slots = self._slots(rows, stop_ids)
        if self.pages is None:
            return slots
        table = _given(rows, self.pages.width) if reads else None
        return slots._replace(cache=self._pool()._replace(table=table))

    def _pool(self) -> PagedCache:
        assert self.pages is not None
        total = self.pages.total
        abstract = jax.eval_shape(lambda: paged_slots.empty_pool(self.config, total))
        keys, values = page_axes(abstract)
        held = as_input(self.layout.abstract(abstract.keys, keys))
        if abstract.values is None:
            return PagedCache(held, None)
        return PagedCache(held, as_input(self.layout.abstract(abstract.values, values)))

    def _prefix(self, rows: int, tokens: int) -> Prefix:
        """Returns the abstract result of a prefill."""
        given = _given(rows, tokens)
        abstract = jax.eval_shape(lambda p, t: core.prefill(self.config, p, t), self.params, given)
        read = as_input(self.layout.abstract(abstract.tokens, ("batch",)))
        return Prefix(read, self._cache(abstract.cache))

    def _cache(self, abstract: KVCache) -> KVCache:
        return KVCache(*map(as_input, map_with_axes(self.layout.abstract, abstract)))


def _given(*shape: int) -> Int[Array, ...]:
    """Returns an abstract array of integers that comes from the host."""
    return as_input(jax.ShapeDtypeStruct(shape, jnp.int32))


def _rows(rows: int, stop_ids: int) -> SlotRows:
    nothing = Sampling(max_new_tokens=1, stop_ids=())
    keys = as_input(jax.ShapeDtypeStruct((rows, 2), jnp.uint32))
    choice = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), knobs([nothing] * rows, stop_ids)
    )
    return SlotRows(_given(rows), _given(rows), keys, choice)
