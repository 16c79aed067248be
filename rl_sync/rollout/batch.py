"""The host's view of an engine's slots, and of the compiled programs that run on them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, UInt32

from rl_sync.models.cache import KVCache
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout, using
from rl_sync.rollout import slots as core
from rl_sync.rollout.buckets import Sizes
from rl_sync.rollout.engine_programs import LEAST_STOP_IDS, CompiledProgram, stop_ids_bucket
from rl_sync.rollout.sampling import ALL_CHANGES, LogitsProcessors, Sampling, knobs
from rl_sync.rollout.slots import Chunk, Prefix, SlotRows, Slots
from rl_sync.types import Params

T = TypeVar("T")


class Start(NamedTuple):
    """A sequence to start in a slot.

    Attributes:
      source: row of its prompt in the prefix.
      target: slot that it gets.
      prompt: token ids of its prompt.
      sampling: sampling choices for its tokens.
      key: random key of its sampling.
    """

    source: int
    target: int
    prompt: Int[np.ndarray, " P"]
    sampling: Sampling
    key: UInt32[np.ndarray, " 2"]


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
      chunk_tokens: maximum decode steps of a chunk.
      layout: sharding of the weights and the slots.
      before_first: called with each program before its first call.
      rows: current number of slots.
      changes: kinds of logits processors that sequences may ask for.
      records_routes: whether prefills and chunks have the experts of their tokens.
      compiled: programs compiled so far.
      compile_secs: time spent on compilation.
    """

    config: ModelConfig
    sizes: Sizes
    chunk_tokens: int
    layout: Layout
    before_first: Callable[[CompiledProgram], None] = lambda program: None
    rows: int = 0
    changes: LogitsProcessors = ALL_CHANGES
    records_routes: bool = False
    compiled: set[CompiledProgram] = dataclasses.field(default_factory=set)
    compile_secs: float = 0.0
    _params: Params = None
    _slots: Slots | None = None
    _stop_ids: int = LEAST_STOP_IDS

    @property
    def length(self) -> int:
        """Number of positions of a slot."""
        return self.sizes.length

    def load(self, params: Params) -> None:
        """Takes new weights; their arrays must stay alive until the next `load`."""
        # JAX distinguishes arrays that were placed explicitly from others. Without this line,
        # everything would be compiled again.
        self._params = jax.device_put(params, jax.tree.map(lambda x: x.sharding, params))

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

    def resize(self, rows: int, kept: Sequence[int]) -> None:
        """Changes the number of slots; the kept slots become the first ones."""
        if not kept:
            self._slots = None  # Freed first: two caches may not fit in memory.
            self._slots = self._empty_slots(rows)
        else:
            sources = np.zeros(rows, np.int32)
            sources[: len(kept)] = kept
            program = CompiledProgram("rearrange", (self.rows, rows, self._stop_ids))
            self._slots = self._call(program, core.rearrange, self._slots, sources)
        self.rows = rows

    def prefill(self, prompts: Sequence[Int[np.ndarray, " P"]], width: int) -> Prefix:
        """Prefills prompts, padded to `width`."""
        rows = self.sizes.prefill_rows(len(prompts), width)
        padded = _padded(prompts, rows, width)
        program = CompiledProgram("prefill", (rows, width))
        return self._call(
            program,
            core.prefill,
            self.config,
            self._params,
            padded,
            records_routes=self.records_routes,
        )

    def copy_cache(self, slot: int, tokens: int) -> KVCache:
        """Copies the cache of a slot whose sequence has `tokens` tokens, rounded up to a bucket."""
        span = self.sizes.prompt_bucket(tokens)
        program = CompiledProgram("copy_cache", (self.rows, span, self._stop_ids))
        source = np.array([slot], np.int32)
        return self._call(program, core.copy_cache, self._slots, source, span=span)

    def insert_copy(self, cache: KVCache, start: Start) -> None:
        """Starts a sequence from a copy of its prompt's cache."""
        tokens: Any = _padded([start.prompt], 1, self.sizes.prompt_bucket(len(start.prompt)))
        self._insert("insert_copy", Prefix(tokens, cache), [start])

    def insert(self, prefix: Prefix, starts: Sequence[Start]) -> None:
        """Starts sequences whose prompts are in a prefix."""
        self._insert("insert", prefix, starts)

    def _insert(self, name: str, prefix: Prefix, starts: Sequence[Start]) -> None:
        filled = [*starts, *[starts[-1]] * (self.rows - len(starts))]
        sources = np.array([start.source for start in filled], np.int32)
        targets = self._targets([start.target for start in starts])
        lengths: Any = np.array([len(start.prompt) for start in filled], np.int32)
        keys: Any = np.stack([start.key for start in filled])
        choice = knobs([start.sampling for start in filled], self._stop_ids)
        rows = SlotRows(lengths - 1, lengths, keys, choice)
        program = CompiledProgram(name, (self.rows, *prefix.tokens.shape, self._stop_ids))
        count = np.int32(len(starts))
        self._slots = self._call(
            program,
            core.insert,
            self._slots,
            prefix._replace(routes=None),
            count,
            sources,
            targets,
            rows,
        )

    def extend(self, extensions: Sequence[Extension], most_given: int) -> None:
        """Continues sequences after given tokens.

        Args:
          most_given: maximum number of given tokens of any sequence, in this or any other call.
        """
        filled = [*extensions, *[extensions[-1]] * (self.rows - len(extensions))]
        given = np.zeros((self.rows, most_given), np.int32)
        for row, extension in zip(given, extensions, strict=False):
            row[: len(extension.given)] = extension.given
        newest: Any = np.array([extension.newest for extension in filled], np.int32)
        counts = np.array([len(extension.given) for extension in filled], np.int32)
        keys: Any = np.stack([extension.key for extension in filled])
        choice = knobs([extension.sampling for extension in filled], self._stop_ids)
        rows = SlotRows(newest, newest + 1 + counts, keys, choice)
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
    ) -> Chunk:
        """Decodes the next chunk; see `rl_sync.rollout.slots.decode_chunk`.

        Args:
          longest: number of tokens of the longest live sequence.
        """
        span = self.sizes.span_bucket(longest + self.chunk_tokens)
        program = CompiledProgram("decode", (self.rows, span, self._stop_ids, *self.changes))
        self._slots, chunk = self._call(
            program,
            core.decode_chunk,
            self.config,
            self._params,
            self._slots,
            live,
            np.int32(enough),
            pauses,
            span=span,
            chunk_tokens=self.chunk_tokens,
            changes=self.changes,
            records_routes=self.records_routes,
        )
        return chunk

    def recompute(self, longest: int) -> None:
        """Recomputes the cache of all slots with the current weights, and waits for it.

        Args:
          longest: number of tokens of the longest sequence.
        """
        span = self.sizes.prompt_bucket(longest)
        count = self.sizes.recomputed_rows(self.rows, span)
        for start in range(0, self.rows, count):
            self._slots = self._call(
                CompiledProgram("recompute", (self.rows, count, span, self._stop_ids)),
                core.recompute,
                self.config,
                self._params,
                self._slots,
                np.int32(start),
                count=count,
                span=span,
            )
        jax.block_until_ready(self._slots)

    def _empty_slots(self, rows: int) -> Slots:
        program = CompiledProgram("empty_slots", (rows, self._stop_ids))
        slots = self._call(
            program, core.empty_slots, self.config, rows, self.length, self._stop_ids
        )
        # On one device nothing has placed the arrays yet.
        return slots if self.layout.mesh.size > 1 else jax.device_put(slots, self.layout.repeated)

    def _call(
        self, program: CompiledProgram, function: Callable[..., T], *args: Any, **sizes: Any
    ) -> T:
        is_new = program not in self.compiled
        self.compiled.add(program)
        started = time.monotonic()
        if is_new:
            self.before_first(program)
        with using(self.layout):
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
