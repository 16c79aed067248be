"""The pure core of the engine: slots in which sequences are decoded, and functions on them.

A slot holds a sequence's tokens, and the KV cache of all of them except the newest. A sequence has
no other state, whether it is a prompt without sampled tokens or an interrupted completion. Each
decode step feeds the newest token and samples the next one. Rows that are not live keep their
state. A step of a program that drafts feeds drafted tokens, too, samples the token after each, and
keeps those that plain steps would have sampled (`rl_sync.rollout.speculation.drafts`).

A sequence may continue after its completion: its tokens so far and the given ones are then its
prompt. While the newest token lies before the prompt's last token, a decode step takes the next
token from the prompt, and samples none.

All functions map state to state. Parameters and sampling choices are arguments, so new values of
them need no recompilation. Programs are compiled for shapes, and for a `ChunkProgram` or a `span`.

Letters in shapes: B rows (slots), S positions of a slot, P positions of a prompt, R prompts of a
prefill, T tokens that extend a sequence, or that a step feeds, C tokens of a chunk, W words of the
vocabulary, N tokens of references, L layers, K kv heads, H head dim, E experts of a token.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt, UInt32

from rl_sync.models import transformer
from rl_sync.models.cache import (
    Axes,
    KVCache,
    empty_cache,
    map_with_axes,
    merged_slots,
    slot_axes,
    split_slots,
)
from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import AnyCache, PagedCache, sharded
from rl_sync.models.sharding import constrain
from rl_sync.models.shards import by_rows
from rl_sync.models.slot_shares import first_slots
from rl_sync.models.vision.projector import Seen
from rl_sync.models.vocabulary.token_sets import packed
from rl_sync.rollout.sampling import (
    ALL_CHANGES,
    EXCLUDED,
    LogitsProcessors,
    RowHistory,
    Sampling,
    SamplingParams,
    adjusted_logits,
    draw,
    drawn_logprobs,
    knobs,
    uniforms,
)
from rl_sync.rollout.speculation.drafts import Drafts, Text, looked_up, verified
from rl_sync.sampling_masks import word_count
from rl_sync.token_records import NEVER, SamplerShape
from rl_sync.types import Params

NOT_DRAWN = -1
_WAITING_SHARE = 8
"""Inverse of the share of the live rows that may have tokens for a whole chunk, and wait."""


class SlotRows(NamedTuple):
    """Values of each sequence, in addition to its tokens and their cache.

    Attributes:
      newest: position of the newest token that is sampled or fed.
      prompt_lengths: number of tokens of its prompt, at least 1. The prompt may extend beyond
        `newest`.
      keys: random key of its sampling.
      choice: its sampling choices.
    """

    newest: Int[Array, " B"]
    prompt_lengths: Int[Array, " B"]
    keys: UInt32[Array, "B 2"]
    choice: SamplingParams


class Slots(NamedTuple):
    """A batch of sequences.

    Attributes:
      tokens: prompt and completion of each sequence; entries after both are undefined.
      cache: keys and values of the tokens before the newest; None while pages are kept apart.
      rows: other values of each sequence.
    """

    tokens: Int[Array, "B S"]
    cache: AnyCache | None
    rows: SlotRows


class Prefix(NamedTuple):
    """Prompts, padded on the right, and their keys and values, unless these are in pages.

    Attributes:
      routes: experts of the tokens; None if they are not recorded.
    """

    tokens: Int[Array, "R P"]
    cache: KVCache | None
    routes: UInt[Array, "R P L E"] | None = None


class SamplerOutcomes(NamedTuple):
    """`SamplerRecord` on the devices."""

    logprobs: Float[Array, "... B outcomes"]
    ids: Int[Array, "... B best"]


class Chunk(NamedTuple):
    """Tokens that one call fed to the model, and those that it sampled after each.

    Attributes:
      tokens: token that was sampled after each fed token of a row; −1 where the next token came
        from the prompt, and behind the last one.
      logprobs: log-probability of each token under the distribution that it was sampled from; see
        `LogitsProcessors.whole`.
      live: rows that continue.
      steps: number of steps taken.
      fed: number of tokens that each row fed; one a step without drafts.
      drafted, accepted: number of drafted tokens, and of those that were kept.
      kept: set of tokens that each token could be sampled from, as bits (`rl_sync.sampling_masks`);
        None without `LogitsProcessors.masks`.
      routes: experts of each fed token, which is the one before the sampled token; None if they are
        not recorded.
      sampler: distribution of each token; None if it is not recorded.
    """

    tokens: Int[Array, "C B"]
    logprobs: Float[Array, "C B"]
    live: Bool[Array, " B"]
    steps: Int[Array, ""]
    fed: Int[Array, " B"]
    drafted: Int[Array, ""]
    accepted: Int[Array, ""]
    kept: UInt32[Array, "C B W"] | None = None
    routes: UInt[Array, "C B L E"] | None = None
    sampler: SamplerOutcomes | None = None


class ChunkProgram(NamedTuple):
    """Choices that a program for chunks is compiled for, apart from the shapes of its arrays.

    Attributes:
      span: number of cache positions that are read; it must exceed the position of every sampled
        token.
      chunk_tokens: maximum number of tokens that a row feeds, and of steps.
      changes: see `adjusted_logits`.
      records_routes: whether `Chunk.routes` are recorded.
      sampler: shape of `Chunk.sampler`; None if it is not recorded.
      draft_tokens: maximum number of drafted tokens of a row and step; 0 for plain steps.
    """

    span: int
    chunk_tokens: int
    changes: LogitsProcessors = ALL_CHANGES
    records_routes: bool = False
    sampler: SamplerShape | None = None
    draft_tokens: int = 0


@functools.partial(jax.jit, static_argnames=("config", "rows", "length", "width", "paged"))
def empty_slots(
    config: ModelConfig, rows: int, length: int, width: int, paged: bool = False
) -> Slots:
    """Makes slots without sequences, with room for `width` stop ids each.

    Args:
      paged: whether keys and values are in pages, which are kept apart.
    """
    nothing = Sampling(max_new_tokens=1, stop_ids=())
    slots = Slots(
        tokens=jnp.zeros((rows, length), jnp.int32),
        cache=None if paged else empty_cache(config, rows, length),
        rows=SlotRows(
            newest=jnp.zeros(rows, jnp.int32),
            prompt_lengths=jnp.ones(rows, jnp.int32),
            keys=jnp.zeros((rows, 2), jnp.uint32),
            choice=jax.tree.map(jnp.asarray, knobs([nothing] * rows, width)),
        ),
    )
    return on_mesh(slots)


def on_mesh(slots: Slots) -> Slots:
    """Shards slots as the current layout says: by rows, and caches also by heads."""
    rows = jax.tree.map(lambda x: constrain(x, "batch"), slots.rows)
    cache = slots.cache
    if isinstance(cache, PagedCache):
        cache = sharded(cache)
    elif cache is not None:
        cache = KVCache(*map_with_axes(_sharded, cache))
    return Slots(constrain(slots.tokens, "batch"), cache, rows)


def _sharded(x: Array, axes: Axes) -> Array:
    """Shards a cache's keys or values as the current layout says."""
    return constrain(x, *axes)


def gathered(cache: KVCache) -> KVCache:
    """Gathers all rows of a cache on every device."""

    def whole(x: Array, axes: Axes) -> Array:
        return constrain(x, *(None if axis == "batch" else axis for axis in axes))

    return KVCache(*map_with_axes(whole, cache))


@functools.partial(jax.jit, static_argnames=("config", "records_routes"))
def prefill(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "R P"],
    records_routes: bool = False,
    images: Seen | None = None,
) -> Prefix:
    """Prefills prompts that are padded on the right, with their images, if they have any."""
    _, cache, routes = transformer.prefill(config, params, tokens, records_routes, images)
    assert isinstance(cache, KVCache)
    # Every process's host reads the routes.
    routes = None if routes is None else constrain(routes)
    return Prefix(constrain(tokens, "batch"), KVCache(*map_with_axes(_sharded, cache)), routes)


@functools.partial(jax.jit, donate_argnames="slots")
def insert(
    slots: Slots,
    prefix: Prefix,
    count: Int[Array, ""],
    sources: Int[Array, " B"],
    targets: Int[Array, " B"],
    rows: SlotRows,
) -> Slots:
    """Starts sequences: copies row `sources[i]` of a prefix to slot `targets[i]`, for i < count.

    Args:
      sources, targets: row and slot of each sequence. Entries after `count` are not used, but their
        targets must be outside the slots, for example B.
      rows: values of the new sequences, in the same order.
    """

    assert isinstance(slots.cache, KVCache)
    assert prefix.cache is not None
    # Gathered once, because any slot may get any row.
    prefix = Prefix(constrain(prefix.tokens), split_slots(gathered(prefix.cache)))

    def write(i: Int[Array, ""], held: tuple[Array, KVCache]) -> tuple[Array, KVCache]:
        tokens, cache = held
        source, target = sources[i], targets[i]
        row = jax.lax.dynamic_slice_in_dim(prefix.tokens, source, 1)
        tokens = jax.lax.dynamic_update_slice(tokens, row, (target, 0))

        def copy(to: Array, of: Array) -> Array:
            one = jax.lax.dynamic_slice_in_dim(of, source, 1, axis=2)
            return jax.lax.dynamic_update_slice(to, one, (0, 0, target, *[0] * (to.ndim - 3)))

        return tokens, jax.tree.map(copy, cache, prefix.cache)

    held = slots.tokens, split_slots(slots.cache)
    tokens, cache = jax.lax.fori_loop(0, count, write, held)
    return on_mesh(Slots(tokens, merged_slots(cache), with_rows(slots.rows, targets, rows)))


@functools.partial(jax.jit, static_argnames="span")
def copy_cache(slots: Slots, source: Int[Array, " 1"], span: int) -> KVCache:
    """Copies a slot's cache up to position `span`, as a prefix with one row.

    All devices that share the rows of the slots get the copy, each for its own heads.
    """
    assert isinstance(slots.cache, KVCache)
    C = slots.cache.values.shape[4]
    pages, width = -(-span // C), min(span, C)
    # The row comes first: a TPU would copy the slots of all rows.
    rows = (x[:, :pages, source] for x in slots.cache)
    parts = (first_slots(x, axis, width) for x, axis in zip(rows, slot_axes(), strict=True))
    return gathered(KVCache(*parts))


def with_rows(rows: SlotRows, targets: Int[Array, " B"], new: SlotRows) -> SlotRows:
    """Replaces the values of the target slots; targets outside the slots are ignored."""
    return jax.tree.map(lambda old, row: old.at[targets].set(row, mode="drop"), rows, new)


@functools.partial(jax.jit, static_argnames=("config", "program"), donate_argnames="slots")
def decode_chunk(
    config: ModelConfig,
    params: Params,
    slots: Slots,
    live: Bool[Array, " B"],
    enough: Int[Array, ""],
    pauses: Int[Array, " N"],
    program: ChunkProgram,
    references: Int[Array, "B N"] | None = None,
) -> tuple[Slots, Chunk]:
    """Takes up to `chunk_tokens` steps: in each, a live row samples or reads tokens.

    A row reads tokens as long as its prompt has tokens left. With drafts it may have tokens for a
    whole chunk early: it then waits, until too many rows do.

    Args:
      live: rows that continue; the others are finished.
      enough: number of live rows at which the chunk ends early.
      pauses: tokens at which a row stops being live, once it has its minimum number of tokens; the
        host then checks whether they complete a stop string.
      references: texts from which drafts may be taken, besides the row's own; see `Text`.
    """

    def unfinished(carry: tuple[Slots, Chunk]) -> Bool[Array, ""]:
        chunk = carry[1]
        left = (chunk.steps < program.chunk_tokens) & (chunk.live.sum() > enough)
        if not program.draft_tokens:
            return left
        waiting = chunk.live & (chunk.fed == program.chunk_tokens)
        return left & (_WAITING_SHARE * waiting.sum() <= chunk.live.sum())

    if references is not None:
        references = constrain(references, "batch")
    step = functools.partial(_step, config, params, _ChunkTexts(pauses, references), program)
    start = slots, _no_tokens(config, live, program)
    slots, chunk = jax.lax.while_loop(unfinished, step, start)
    # Every process's host reads the whole chunk.
    return on_mesh(slots), jax.tree.map(constrain, chunk)


class _ChunkTexts(NamedTuple):
    """Arguments of `decode_chunk` that its steps share."""

    pauses: Int[Array, " N"]
    references: Int[Array, "B N"] | None


def _step(
    config: ModelConfig,
    params: Params,
    texts: _ChunkTexts,
    program: ChunkProgram,
    carry: tuple[Slots, Chunk],
) -> tuple[Slots, Chunk]:
    """Takes one step of a chunk."""
    (tokens, cache, rows), chunk = carry
    assert cache is not None
    S, everyone = tokens.shape[1], jnp.arange(tokens.shape[0])[:, None]
    tokens, is_fed = _with_drafts(tokens, rows, chunk, texts.references, program)
    ahead = jnp.arange(is_fed.shape[1])
    positions = jnp.where(is_fed, rows.newest[:, None] + ahead, -1)
    fed = tokens[everyone, positions]
    hidden, cache, routes = transformer.decode_step(
        config, params, fed, positions, cache, program.span, program.records_routes
    )
    generated = (rows.newest + 1 - rows.prompt_lengths)[:, None] + ahead
    draws = is_fed & (generated >= 0)
    history = _History(tokens[:, : program.span], rows, generated, draws)
    drawn, logprobs, kept, sampler = _all_sampled(config, params, program, hidden, history)
    ended = draws & _ends(drawn, generated, rows.choice, texts.pauses)
    is_kept = verified(fed, drawn, draws, ended, is_fed)
    draws &= is_kept
    after = jnp.where(draws, rows.newest[:, None] + 1 + ahead, S)
    tokens = tokens.at[everyone, after].set(drawn, mode="drop")
    logprobs = jnp.where(draws, logprobs, 0.0)
    made = _Fed(jnp.where(draws, drawn, NOT_DRAWN), logprobs, kept, routes, sampler)
    count, is_draft = is_kept.sum(axis=1), (generated > 0) & (ahead > 0)
    chunk = _with_more(chunk, made, is_kept)._replace(
        live=chunk.live & ~(is_kept & ended).any(axis=1),
        steps=chunk.steps + 1,
        fed=chunk.fed + count,
        drafted=chunk.drafted + (is_fed & is_draft).sum(),
        accepted=chunk.accepted + (is_kept & is_draft).sum(),
    )
    return on_mesh(Slots(tokens, cache, rows._replace(newest=rows.newest + count))), chunk


def _ends(
    drawn: Int[Array, "B T"],
    generated: Int[Array, "B T"],
    choice: SamplingParams,
    pauses: Int[Array, " N"],
) -> Bool[Array, "B T"]:
    """Says which sampled tokens end their rows, or let them wait for the host."""
    stopped = (drawn[..., None] == choice.stop_ids[:, None]).any(axis=-1)
    paused = (drawn[..., None] == pauses).any(axis=-1)
    stopped |= paused & (generated + 1 >= choice.min_new_tokens[:, None])
    return stopped | (generated + 1 >= choice.max_new_tokens[:, None])


def _with_drafts(
    tokens: Int[Array, "B S"],
    rows: SlotRows,
    chunk: Chunk,
    references: Int[Array, "B N"] | None,
    program: ChunkProgram,
) -> tuple[Int[Array, "B S"], Bool[Array, "B T"]]:
    """Puts drafted tokens behind the newest ones; returns which of the T places of a step are fed.

    Rows that are no longer live, or have tokens for a whole chunk, feed none.
    """
    moves = chunk.live & (chunk.fed < program.chunk_tokens)
    ahead = jnp.arange(1 + program.draft_tokens)
    if not program.draft_tokens:
        return tokens, moves[:, None] & (ahead == 0)
    drafts = _drafts(tokens[:, : program.span], rows, chunk.fed, references, program)
    is_fed = moves[:, None] & (ahead <= drafts.counts[:, None])
    places = jnp.where(is_fed, rows.newest[:, None] + ahead, tokens.shape[1])[:, 1:]
    everyone = jnp.arange(len(tokens))[:, None]
    return tokens.at[everyone, places].set(drafts.tokens, mode="drop"), is_fed


def _drafts(
    tokens: Int[Array, "B S"],
    rows: SlotRows,
    fed: Int[Array, " B"],
    references: Int[Array, "B N"] | None,
    program: ChunkProgram,
) -> Drafts:
    """Returns the tokens that each row feeds behind its newest one.

    They stay within the row's chunk, and before its last possible token, which is never fed. So
    they need no more of the cache than plain steps.
    """
    found = looked_up(Text.of(references, tokens, rows.newest), program.draft_tokens)
    # A row that reads its prompt has its next tokens.
    unread = rows.prompt_lengths - 1 - rows.newest
    after = rows.newest[:, None] + 1 + jnp.arange(program.draft_tokens)
    given = jnp.take_along_axis(tokens, after, axis=1, mode="clip")
    reads = unread > 0
    drafts = Drafts(
        jnp.where(reads[:, None], given, found.tokens), jnp.where(reads, unread, found.counts)
    )
    left = rows.choice.max_new_tokens + rows.prompt_lengths - 2 - rows.newest
    most = jnp.minimum(program.draft_tokens, program.chunk_tokens - 1 - fed)
    return drafts.at_most(jnp.minimum(left, most))


class _History(NamedTuple):
    """State of rows when the tokens of a step are sampled.

    Attributes:
      tokens: tokens of each row, with the fed ones.
      rows: other values of each row, before the step.
      generated, draws: see `RowHistory`, for each fed token.
    """

    tokens: Int[Array, "B S"]
    rows: SlotRows
    generated: Int[Array, "B T"]
    draws: Bool[Array, "B T"]


class _Fed(NamedTuple):
    """Records of the fed tokens of a step; see `Chunk`."""

    tokens: Int[Array, "B T"]
    logprobs: Float[Array, "B T"]
    kept: UInt32[Array, "B T W"] | None
    routes: UInt[Array, "B T L E"] | None
    sampler: SamplerOutcomes | None


def _with_more(chunk: Chunk, made: _Fed, is_kept: Bool[Array, "B T"]) -> Chunk:
    """Adds the records of a step's kept tokens to a chunk, behind those of their rows."""
    C, B = chunk.tokens.shape
    before = chunk.fed[:, None] + jnp.arange(is_kept.shape[1])
    places = jnp.where(is_kept, before, C)

    def put(of: Array, now: Array) -> Array:
        if is_kept.shape[1] == 1:  # All rows that move have as many tokens.
            return of.at[chunk.steps].set(now[:, 0])
        return of.at[places, jnp.arange(B)[:, None]].set(now, mode="drop")

    held = _Fed(chunk.tokens, chunk.logprobs, chunk.kept, chunk.routes, chunk.sampler)
    return chunk._replace(**jax.tree.map(put, held, made)._asdict())


def _all_sampled(
    config: ModelConfig,
    params: Params,
    program: ChunkProgram,
    hidden: Float[Array, "B T D"],
    history: _History,
) -> tuple[Array, Array, Array | None, SamplerOutcomes | None]:
    """Samples the token after each fed token; see `_sampled`, whose rows are theirs."""
    B, T, D = hidden.shape
    tokens, rows, generated, draws = history
    of_row = (rows.choice, tokens, rows.newest, rows.keys)
    choice, tokens, newest, keys = jax.tree.map(lambda x: jnp.repeat(x, T, axis=0), of_row)
    newest += jnp.tile(jnp.arange(T), B)
    found = by_rows(
        functools.partial(_sampled, config, program),
        transformer.logits(config, params, hidden.reshape(B * T, D)),
        ("batch", "vocab"),
        choice,
        RowHistory(tokens, newest, generated.reshape(-1), draws.reshape(-1)),
        keys,
    )
    return jax.tree.map(lambda x: x.reshape(B, T, *x.shape[1:]), found)


def _no_tokens(config: ModelConfig, live: Bool[Array, " B"], program: ChunkProgram) -> Chunk:
    """Makes a chunk before its first step."""
    shape, words = (program.chunk_tokens, live.size), word_count(config.vocab_size)
    return Chunk(
        tokens=jnp.full(shape, NOT_DRAWN, jnp.int32),
        logprobs=jnp.zeros(shape, jnp.float32),
        live=live,
        steps=jnp.int32(0),
        fed=jnp.zeros_like(live, jnp.int32),
        drafted=jnp.int32(0),
        accepted=jnp.int32(0),
        kept=jnp.zeros((*shape, words), jnp.uint32) if program.changes.masks else None,
        routes=_no_routes(config, *shape) if program.records_routes else None,
        sampler=_no_outcomes(program.sampler, *shape) if program.sampler else None,
    )


def _no_routes(config: ModelConfig, *shape: int) -> UInt[Array, "... L E"]:
    assert config.routes is not None
    return jnp.asarray(config.routes.unrecorded(*shape))


def _no_outcomes(shape: SamplerShape, *tokens: int) -> SamplerOutcomes:
    return SamplerOutcomes(*map(jnp.asarray, shape.blank(*tokens)))


def _sampled(
    config: ModelConfig,
    program: ChunkProgram,
    logits: Float[Array, "B V"],
    choice: SamplingParams,
    history: RowHistory,
    keys: UInt32[Array, "B 2"],
) -> tuple[
    Int[Array, " B"], Float[Array, " B"], UInt32[Array, "B W"] | None, SamplerOutcomes | None
]:
    """Samples tokens; never the one that stands for images.

    Returns:
      The tokens, their log-probabilities, the sets of possible tokens, and the distributions.
    """
    changes = program.changes
    never = config.vision.token_id if config.vision else None
    adjusted = adjusted_logits(logits, choice, history, changes)
    if never is not None:
        adjusted = adjusted.at[:, never].set(EXCLUDED)
    drawn, logprobs = draw(uniforms(keys, history.generated), adjusted, choice.greedy)
    counted = adjusted
    if (changes.whole and changes.excludes) or (never is not None and not changes.masks):
        changes_of_all = changes._replace(goes_on=False, truncates=False)
        counted = adjusted_logits(logits, choice, history, changes_of_all)
    if counted is not adjusted or config.batch_invariant:
        found = drawn_logprobs(counted, drawn, config.batch_invariant)
        logprobs = jnp.where(choice.greedy, logprobs, found)
    kept = packed(adjusted > EXCLUDED) if changes.masks else None
    sampler = distribution(adjusted, program.sampler.best) if program.sampler else None
    return drawn, logprobs, kept, sampler


def distribution(adjusted: Float[Array, "B V"], best: int) -> SamplerOutcomes:
    """Returns the record of a distribution, given its logits, −∞ where excluded.

    Args:
      best: see `SamplerShape`.
    """
    logprobs = jax.nn.log_softmax(adjusted, axis=-1)
    if not best:
        nothing = jnp.zeros((len(logprobs), 0), jnp.int32)
        return SamplerOutcomes(jnp.maximum(logprobs, NEVER), nothing)
    found, ids = jax.lax.top_k(logprobs, best)
    others = logprobs.at[jnp.arange(len(logprobs))[:, None], ids].set(EXCLUDED)
    rest = jax.nn.logsumexp(others, axis=-1, keepdims=True)
    outcomes = jnp.concatenate([found, rest], axis=-1)
    return SamplerOutcomes(jnp.maximum(outcomes, NEVER), ids)


@functools.partial(jax.jit, donate_argnames="slots")
def extend(
    slots: Slots, given: Int[Array, "B T"], targets: Int[Array, " B"], rows: SlotRows
) -> Slots:
    """Appends tokens to finished sequences, which continue from there.

    Args:
      given: the tokens, padded on the right.
      targets: slot of each sequence; a target outside the slots leaves its row out.
      rows: new values of the sequences. `newest` is where the cache ends, and `prompt_lengths`
        counts the given tokens.
    """
    S = slots.tokens.shape[1]
    after = rows.newest[:, None] + 1 + jnp.arange(given.shape[1])
    after = jnp.where(after < rows.prompt_lengths[:, None], after, S)
    tokens = slots.tokens.at[targets[:, None], after].set(given, mode="drop")
    return on_mesh(Slots(tokens, slots.cache, with_rows(slots.rows, targets, rows)))


@jax.jit
def rearrange(slots: Slots, sources: Int[Array, " R"]) -> Slots:
    """Changes the number of slots: slot i becomes the former slot `sources[i]`."""
    take = functools.partial(jax.tree.map, lambda x: x[sources])
    cache = jax.tree.map(lambda x: x[:, :, sources], slots.cache)
    return on_mesh(Slots(slots.tokens[sources], cache, take(slots.rows)))


@functools.partial(jax.jit, static_argnames=("config", "count", "span"), donate_argnames="slots")
def recompute(
    config: ModelConfig,
    params: Params,
    slots: Slots,
    start: Int[Array, ""],
    count: int,
    span: int,
    images: Seen | None = None,
) -> Slots:
    """Recomputes the cache of slots `start` to `start + count`, up to position `span`.

    Args:
      images: images of these slots.
    """
    tokens = jax.lax.dynamic_slice_in_dim(slots.tokens[:, :span], start, count)
    fresh = prefill(config, params, tokens, images=images).cache
    assert fresh is not None
    assert isinstance(slots.cache, KVCache)

    def put(to: Array, of: Array) -> Array:
        return jax.lax.dynamic_update_slice(to, of, (0, 0, start, *[0] * (to.ndim - 3)))

    cache = jax.tree.map(put, split_slots(slots.cache), split_slots(fresh))
    return on_mesh(slots._replace(cache=merged_slots(cache)))
