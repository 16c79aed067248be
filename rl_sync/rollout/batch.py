"""The host's view of an engine's slots, and of the compiled programs that run on them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from rl_sync.models.cache import KVCache
from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import PagedCache, PageFills
from rl_sync.models.sharding import Layout, using
from rl_sync.models.vision.projector import Seen
from rl_sync.rollout import slots as core
from rl_sync.rollout.buckets import Sizes
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.engine_programs import LEAST_STOP_IDS, CompiledProgram, stop_ids_bucket
from rl_sync.rollout.image_features import ImageFeatures, encoded
from rl_sync.rollout.paging import paged_slots
from rl_sync.rollout.paging.page_table import PageFill, PageTable, most_fills
from rl_sync.rollout.sampling import ALL_CHANGES, LogitsProcessors, Sampling, knobs
from rl_sync.rollout.slots import Chunk, ChunkProgram, Prefix, SlotRows, Slots
from rl_sync.sequence_images import SequenceImages
from rl_sync.types import Params, as_input

T = TypeVar("T")


class Start(NamedTuple):
    """A sequence to start in a slot.

    Attributes:
      source: row of its tokens in the prefix.
      target: slot that it gets.
      tokens: token ids that it begins with: its prompt, and what was sampled already.
      sampling: sampling choices for its tokens.
      key: random key of its sampling.
      prompt_tokens: number of tokens of its prompt.
      newest: position where its cache ends; decode steps read its tokens from there on.
      fills: pages that get its tokens' keys and values from the prefix, if the cache is in pages.
    """

    source: int
    target: int
    tokens: Int[np.ndarray, " P"]
    sampling: Sampling
    key: UInt32[np.ndarray, " 2"]
    prompt_tokens: int
    newest: int
    fills: Sequence[PageFill] = ()


class Extension(NamedTuple):
    """A sequence in a slot that continues after given tokens.

    Attributes:
      target: slot of the sequence.
      newest: position of its last token so far.
      given: tokens that follow.
      sampling: sampling choices for the tokens after the given ones.
      key: random key of their sampling.
    """

    target: int
    newest: int
    given: Int[np.ndarray, " T"]
    sampling: Sampling
    key: UInt32[np.ndarray, " 2"]


@dataclasses.dataclass
class Batch:
    """The engine's slots, whose number changes, and the weights that decode them.

    Attributes:
      config: model config.
      sizes: sizes of its programs, with the maximum number of slots and the positions of each.
      layout: sharding of the weights and the slots.
      options: options of the engine.
      pages: pages of each slot; None if each slot has a cache of its own.
      rows: current number of slots.
      changes: kinds of logits processors that sequences may ask for.
      compiled: programs compiled so far.
      compile_secs: time spent on compilation.
    """

    config: ModelConfig
    sizes: Sizes
    layout: Layout
    options: EngineOptions
    pages: PageTable | None = None
    rows: int = 0
    changes: LogitsProcessors = ALL_CHANGES
    compiled: set[CompiledProgram] = dataclasses.field(default_factory=set)
    compile_secs: float = 0.0
    _params: Params = None
    _slots: Slots | None = None
    _pool: PagedCache | None = None
    _stop_ids: int = LEAST_STOP_IDS

    def __post_init__(self) -> None:
        if self.options.changes is not None:
            self.changes = self.options.changes

    @functools.cached_property
    def features(self) -> ImageFeatures:
        """Features of images, by their digests."""
        return ImageFeatures(self._encode, self.options.image_cache_bytes)

    @property
    def length(self) -> int:
        """Number of positions of a slot."""
        return self.sizes.length

    def load(self, params: Params) -> None:
        """Takes new weights; their arrays must stay alive until the next `load`."""
        # JAX distinguishes arrays that were placed explicitly from others. Without this line,
        # everything would be compiled again.
        if not self.options.frozen_vision:
            self.features.forget()
        self._params = jax.device_put(params, jax.tree.map(lambda x: x.sharding, params))

    def unload(self) -> None:
        """Lets go of the weights."""
        self._params = None

    @property
    def loaded(self) -> bool:
        """True if weights are loaded."""
        return self._params is not None

    def make_room_for_stop_ids(self, count: int) -> None:
        """Makes sure that a row has room for `count` stop ids."""
        width = stop_ids_bucket(count)
        if width <= self._stop_ids:
            return
        if self._slots is not None:
            choice = self._slots.rows.choice
            more = ((0, 0), (0, width - self._stop_ids))
            wider = choice._replace(stop_ids=jnp.pad(choice.stop_ids, more, constant_values=-1))
            self._slots = self._slots._replace(rows=self._slots.rows._replace(choice=wider))
        self._stop_ids = width

    def resize(self, rows: int, kept: Mapping[int, int]) -> None:
        """Changes the number of slots.

        Args:
          kept: former slot of each new slot that is in use.
        """
        if self.pages is not None:
            self.pages.move(rows, kept)
        if not kept:
            self._slots = None  # Freed first: two caches may not fit in memory.
            self._slots = self._empty_slots(rows)
        else:
            sources = np.zeros(rows, np.int32)
            sources[list(kept)] = list(kept.values())
            program = CompiledProgram("rearrange", (self.rows, rows, self._stop_ids))
            self._slots = self._call(program, core.rearrange, self._slots, sources)
        self.rows = rows

    def rest(self) -> None:
        """Frees the slots, which are all empty, and their cache; `resize` makes others."""
        if self.pages is not None:
            self.pages.move(0, {})
            self.pages.forget_prefixes()
        self._slots = self._pool = None
        self.rows = 0

    def prefill(
        self,
        prompts: Sequence[Int[np.ndarray, " P"]],
        width: int,
        images: Sequence[SequenceImages | None] = (),
    ) -> Prefix:
        """Prefills prompts, padded to `width`, with the images of each."""
        rows = self.sizes.prefill_rows(len(prompts), width)
        padded = _padded(prompts, rows, width)
        tiles, seen = self._shown(images, rows, width)
        program = CompiledProgram("prefill", (rows, width, *tiles))
        return self._call(
            program,
            core.prefill,
            self.config,
            self._params,
            padded,
            records_routes=self.options.records_routes,
            images=seen,
            layout=self.layout.of_positions,
        )

    def _shown(
        self, images: Sequence[SequenceImages | None], rows: int, width: int
    ) -> tuple[tuple[int, ...], Seen | None]:
        """Returns the images of rows, and the number of tiles that a row has room for."""
        if self.config.vision is None:
            return (), None
        shown = self.features.shown(self.config, images, (rows, width))
        return ((shown.tiles,), shown.seen) if shown else ((), None)

    def _encode(self, tiles: UInt8[np.ndarray, "N S S 3"]) -> Float[Array, "N M W"]:
        program = CompiledProgram("image_features", (len(tiles),))
        return self._call(program, encoded, self.config, self._params, tiles)

    def copy_cache(self, slot: int, tokens: int) -> KVCache:
        """Copies the cache of a slot whose sequence has `tokens` tokens, rounded up to a bucket."""
        span = self.sizes.prompt_bucket(tokens)
        if self.pages is None:
            program = CompiledProgram("copy_cache", (self.rows, span, self._stop_ids))
            source = np.array([slot], np.int32)
            return self._call(program, core.copy_cache, self._slots, source, span=span)
        pages = np.zeros(self.pages.count(span), np.int32)
        held = self.pages.of(slot)[: len(pages)]
        pages[: len(held)] = np.array(held) + self.pages.shard(slot) * self.pages.pages
        program = CompiledProgram("copy_pages", (span,))
        return self._call(program, paged_slots.copy_pages_of, self._pool, pages, span=span)

    def insert_copy(self, cache: KVCache, start: Start) -> None:
        """Starts a sequence from a copy of its cache."""
        tokens = _padded([start.tokens], 1, self.sizes.prompt_bucket(len(start.tokens)))
        self._insert("insert_copy", Prefix(as_input(tokens), cache), [start])

    def insert(self, prefix: Prefix, starts: Sequence[Start]) -> None:
        """Starts sequences whose tokens are in a prefix."""
        self._insert("insert", prefix, starts)

    def insert_shared(self, starts: Sequence[Start]) -> None:
        """Starts sequences whose first pages are filled already."""
        width = self.sizes.prompt_bucket(max(len(start.tokens) for start in starts))
        tokens = _padded([start.tokens for start in starts], self.rows, width)
        numbered = [start._replace(source=row) for row, start in enumerate(starts)]
        self._insert("insert_shared", Prefix(as_input(tokens), None), numbered)

    def _insert(self, name: str, prefix: Prefix, starts: Sequence[Start]) -> None:
        filled = [*starts, *[starts[-1]] * (self.rows - len(starts))]
        sources = np.array([start.source for start in filled], np.int32)
        targets = self._targets([start.target for start in starts])
        rows = SlotRows(
            as_input(np.array([start.newest for start in filled], np.int32)),
            as_input(np.array([start.prompt_tokens for start in filled], np.int32)),
            as_input(np.stack([start.key for start in filled])),
            knobs([start.sampling for start in filled], self._stop_ids),
        )
        program = CompiledProgram(name, (self.rows, *prefix.tokens.shape, self._stop_ids))
        prefix = prefix._replace(routes=None)
        if self.pages is None:
            count = np.int32(len(starts))
            self._slots = self._call(
                program, core.insert, self._slots, prefix, count, sources, targets, rows
            )
            return
        fills = self._fills(prefix, [(s.target, s.source, s.fills) for s in starts])
        self._fill(program, prefix, sources, targets, rows, fills)

    def _fill(self, program: CompiledProgram, *of: Any) -> None:
        self._keep(self._call(program, paged_slots.insert_pages, self._with_pool(), *of))

    def _fills(
        self, prefix: Prefix, of: Sequence[tuple[int, int, Sequence[PageFill]]]
    ) -> PageFills:
        """Lists the pages to fill by share of the rows.

        Args:
          of: slots, the row of the prefix for each, and the pages that are filled from the row.
        """
        assert self.pages is not None
        shares = len(self.pages.pools)
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(shares)]
        for slot, row, fills in of:
            found[self.pages.shard(slot)] += [(row, fill.number, fill.page) for fill in fills]
        prompts, width = prefix.tokens.shape
        most = most_fills(self.pages.count(width), prompts, self.rows // shares)
        padded = np.zeros((shares, most, 3), np.int32)
        for share, listed in zip(padded, found, strict=True):
            share[: len(listed)] = np.array(listed, np.int32).reshape(-1, 3)
        counts = np.array([len(listed) for listed in found], np.int32)
        return PageFills(as_input(counts), *map(as_input, padded.reshape(-1, 3).T))

    def extend(self, extensions: Sequence[Extension], most_given: int) -> None:
        """Continues sequences after given tokens.

        Args:
          most_given: maximum number of given tokens of any sequence, in this or any other call.
        """
        filled = [*extensions, *[extensions[-1]] * (self.rows - len(extensions))]
        given = np.zeros((self.rows, most_given), np.int32)
        for row, extension in zip(given, extensions, strict=False):
            row[: len(extension.given)] = extension.given
        newest = np.array([extension.newest for extension in filled], np.int32)
        counts = np.array([len(extension.given) for extension in filled], np.int32)
        rows = SlotRows(
            as_input(newest),
            as_input(newest + 1 + counts),
            as_input(np.stack([extension.key for extension in filled])),
            knobs([extension.sampling for extension in filled], self._stop_ids),
        )
        targets = self._targets([extension.target for extension in extensions])
        program = CompiledProgram("extend", (self.rows, most_given, self._stop_ids))
        self._slots = self._call(program, core.extend, self._slots, given, targets, rows)

    def _targets(self, slots: Sequence[int]) -> Int[np.ndarray, " B"]:
        """Pads the list of slots with a slot number that no row has."""
        targets = np.full(self.rows, self.rows, np.int32)
        targets[: len(slots)] = slots
        return targets

    def decode(
        self,
        live: Bool[np.ndarray, " B"],
        enough: int,
        pauses: Int[np.ndarray, " N"],
        longest: int,
        references: Int[np.ndarray, "B E"] | None = None,
    ) -> Chunk:
        """Decodes the next chunk; see `rl_sync.rollout.slots.decode_chunk`.

        Args:
          longest: number of tokens of the longest live sequence.
          references: texts for drafts; None to draft nothing.
        """
        span = self.sizes.span_bucket(longest + self.options.chunk_tokens)
        name = "decode" if references is None else "decode_drafts"
        program = CompiledProgram(name, (self.rows, span, self._stop_ids, *self.changes))
        slots, chunk = self._call(
            program,
            core.decode_chunk,
            self.config,
            self._params,
            self._slots if self.pages is None else self._with_pool(self.pages.array()),
            live,
            np.int32(enough),
            pauses,
            ChunkProgram(
                span,
                self.options.chunk_tokens,
                self.changes,
                self.options.records_routes,
                self.options.sampler,
                0 if references is None else self.options.draft_tokens,
            ),
            references,
        )
        self._keep(slots)
        return chunk

    def _with_pool(self, table: Int[np.ndarray, "B Z"] | None = None) -> Slots:
        """Returns the slots with their pages."""
        assert self._slots is not None
        assert self._pool is not None
        given = None if table is None else as_input(table)
        return self._slots._replace(cache=self._pool._replace(table=given))

    def _keep(self, slots: Slots) -> None:
        """Keeps the slots that a program returns, and their pages apart, if there are any."""
        if isinstance(slots.cache, PagedCache):
            self._pool = slots.cache._replace(table=None)
            slots = slots._replace(cache=None)
        self._slots = slots

    def recompute(
        self,
        sequences: Mapping[int, Int[np.ndarray, " S"]],
        images: Mapping[int, SequenceImages | None],
    ) -> None:
        """Recomputes the cache of sequences with the current weights, and waits for it.

        Args:
          sequences: tokens of the sequence in each slot.
          images: their images.
        """
        longest = max(map(len, sequences.values()))
        span = self.sizes.prompt_bucket(longest)
        if self.pages is not None:
            self._recompute_pages(sequences, images, span)
            return
        count = self.sizes.recomputed_rows(self.rows, span)
        for start in range(0, self.rows, count):
            some = [images.get(slot) for slot in range(start, start + count)]
            tiles, seen = self._shown(some, count, span)
            self._slots = self._call(
                CompiledProgram("recompute", (self.rows, count, span, self._stop_ids, *tiles)),
                core.recompute,
                self.config,
                self._params,
                self._slots,
                np.int32(start),
                count=count,
                span=span,
                images=seen,
            )
        jax.block_until_ready(self._slots)

    def _recompute_pages(
        self,
        sequences: Mapping[int, Int[np.ndarray, " S"]],
        images: Mapping[int, SequenceImages | None],
        width: int,
    ) -> None:
        assert self.pages is not None
        left, filled = list(sequences), set[tuple[int, int]]()
        nothing = knobs([Sampling(max_new_tokens=1, stop_ids=())] * self.rows, self._stop_ids)
        zeros = as_input(np.zeros(self.rows, np.int32))
        keys = as_input(np.zeros((self.rows, 2), np.uint32))
        nobody = np.full(self.rows, self.rows, np.int32)
        while left:
            slots = left[: self.sizes.prefill_rows(len(left), width)]
            left = left[len(slots) :]
            shown = [images.get(slot) for slot in slots]
            prefix = self.prefill([sequences[slot] for slot in slots], width, shown)
            of = []
            for row, slot in enumerate(slots):
                shard, count = self.pages.shard(slot), self.pages.count(len(sequences[slot]))
                held = list(enumerate(self.pages.of(slot)[:count]))
                fills = [PageFill(*one) for one in held if (shard, one[1]) not in filled]
                filled |= {(shard, page) for _, page in held}  # Shared pages are filled once.
                of.append((slot, row, fills))
            program = CompiledProgram("insert", (self.rows, *prefix.tokens.shape, self._stop_ids))
            rows = SlotRows(zeros, zeros, keys, nothing)
            prefix = prefix._replace(routes=None)
            self._fill(program, prefix, zeros, nobody, rows, self._fills(prefix, of))
        jax.block_until_ready(self._pool)

    def _empty_slots(self, rows: int) -> Slots:
        paged = self.pages is not None
        if self.pages is not None and self._pool is None:
            pages = self.pages.total
            program = CompiledProgram("empty_pool", (pages,))
            self._pool = self._placed(
                self._call(program, paged_slots.empty_pool, self.config, pages)
            )
        program = CompiledProgram("empty_slots", (rows, self._stop_ids))
        sizes = (rows, self.length, self._stop_ids, paged)
        return self._placed(self._call(program, core.empty_slots, self.config, *sizes))

    def _placed(self, made: T) -> T:
        # On one device nothing has placed the arrays yet.
        return made if self.layout.mesh.size > 1 else jax.device_put(made, self.layout.repeated)

    def _call(
        self,
        program: CompiledProgram,
        function: Callable[..., T],
        *args: Any,
        layout: Layout | None = None,
        **sizes: Any,
    ) -> T:
        is_new = program not in self.compiled
        self.compiled.add(program)
        started = time.monotonic()
        if is_new:
            self.options.before_first(program)
        with using(layout or self.layout):
            result = function(*args, **sizes)
        if is_new:
            self.compile_secs += time.monotonic() - started
        return result


def _padded(prompts: Sequence[Int[np.ndarray, " P"]], rows: int, width: int) -> np.ndarray:
    """Puts prompts into the first rows of an array, padded on the right."""
    padded = np.zeros((rows, width), np.int32)
    for row, prompt in zip(padded, prompts, strict=False):
        row[: len(prompt)] = prompt
    return padded
