"""Sampling of next tokens from logits; each row of a batch has its own sampling choices.

Letters in shapes: B rows, V vocab, S positions of a row, W stop ids of a row.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, UInt32

from rl_sync.models.invariant import chosen_logprobs
from rl_sync.types import as_input

EXCLUDED = -jnp.inf
_NO_ID = -1


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling choices of a request.

    Logits are changed in the order of the fields from `repetition_penalty` to `min_p`.

    Attributes:
      max_new_tokens: maximum number of tokens of a completion, its stop token included.
      stop_ids: tokens that end a completion; they are part of it.
      stop_strings: texts that end a completion. It ends with the token that completes the first of
        them, of those that are not complete before `min_new_tokens`.
      min_new_tokens: minimum number of tokens of a completion, its stop token included.
      repetition_penalty: factor for tokens that occur in the prompt or the completion: it divides
        positive logits and multiplies negative ones (CTRL, arXiv:1909.05858, section 4.1).
      temperature: divisor of the logits; above 0.
      top_k: only the k likeliest tokens can be sampled; 0 for all.
      top_p: then only the smallest set of likeliest tokens whose probability reaches p; 1 for all.
      min_p: only tokens that are at least p times as likely as the likeliest; 0 for all.
      greedy: whether the likeliest token is always taken; the fields from `temperature` on are then
        ignored.

    Raises:
      ValueError: a value is outside its range.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}.")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} must be from 0 to max_new_tokens="
                f"{self.max_new_tokens}."
            )
        if any(stop < 0 for stop in self.stop_ids):
            raise ValueError(f"stop_ids={self.stop_ids} must be token ids, which are at least 0.")
        if not all(self.stop_strings):
            raise ValueError("A stop string must not be empty: every text contains it.")
        if self.repetition_penalty <= 0:
            raise ValueError(
                f"repetition_penalty must be above 0 (1 for none), not {self.repetition_penalty}."
            )
        if self.temperature <= 0:
            raise ValueError(
                f"temperature must be above 0, not {self.temperature}; for the likeliest token"
                " always, set greedy=True."
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 for all tokens), not {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be in [0, 1), not {self.min_p}.")


class LogitsProcessors(NamedTuple):
    """Kinds of logits processors that sampling choices need; each is a part of a program.

    Attributes:
      penalizes: a repetition penalty.
      goes_on: a minimum number of tokens.
      truncates: `top_k`, `top_p` or `min_p`.
      masks: not a processor: the set of tokens that could be sampled is recorded.
      whole: not a processor: log-probabilities ignore `goes_on` and `truncates`.
    """

    penalizes: bool = False
    goes_on: bool = False
    truncates: bool = False
    masks: bool = False
    whole: bool = False

    @property
    def excludes(self) -> bool:
        """True if some tokens are excluded."""
        return self.goes_on or self.truncates

    @classmethod
    def of(cls, sampling: Sampling) -> LogitsProcessors:
        """Returns the processors that sampling choices need."""
        cuts = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        return cls(
            penalizes=sampling.repetition_penalty != 1,
            goes_on=sampling.min_new_tokens > 0,
            truncates=cuts and not sampling.greedy,
        )

    def with_those(self, other: LogitsProcessors) -> LogitsProcessors:
        """Returns the processors that either of the two has."""
        return LogitsProcessors(*map(operator.or_, self, other))


ALL_CHANGES = LogitsProcessors(True, True, True)


class SamplingParams(NamedTuple):
    """`Sampling` as arrays with one entry a row, so that other choices need no recompilation.

    `stop_ids` is padded with −1.
    """

    max_new_tokens: Int[Array, " B"]
    min_new_tokens: Int[Array, " B"]
    stop_ids: Int[Array, "B W"]
    repetition_penalty: Float[Array, " B"]
    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    min_p: Float[Array, " B"]
    greedy: Bool[Array, " B"]


def knobs(rows: Sequence[Sampling], width: int) -> SamplingParams:
    """Makes the arrays of the rows' choices, on the host, with room for `width` stop ids each."""

    def column(name: str, dtype: type) -> Array:
        return as_input(np.array([getattr(row, name) for row in rows], dtype))

    stop_ids = np.full((len(rows), width), _NO_ID, np.int32)
    for ids, row in zip(stop_ids, rows, strict=True):
        ids[: len(row.stop_ids)] = row.stop_ids
    return SamplingParams(
        max_new_tokens=column("max_new_tokens", np.int32),
        min_new_tokens=column("min_new_tokens", np.int32),
        stop_ids=as_input(stop_ids),
        repetition_penalty=column("repetition_penalty", np.float32),
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        greedy=column("greedy", np.bool_),
    )


class RowHistory(NamedTuple):
    """State of rows when their next token is sampled.

    Attributes:
      tokens: prompt and completion so far, up to `newest`; entries after it are undefined.
      newest: position of the newest token.
      generated: number of tokens of the completion so far.
      live: rows whose sample is used; the choices of other rows cost nothing.
    """

    tokens: Int[Array, "B S"]
    newest: Int[Array, " B"]
    generated: Int[Array, " B"]
    live: Bool[Array, " B"]


_Change = Callable[[Float[Array, "B V"], SamplingParams, RowHistory], Float[Array, "B V"]]


def adjusted_logits(
    logits: Float[Array, "B V"],
    choice: SamplingParams,
    history: RowHistory,
    changes: LogitsProcessors = ALL_CHANGES,
) -> Float[Array, "B V"]:
    """Applies sampling choices: returns the logits to sample from, −∞ where excluded.

    Rows that do not ask for a change keep their logits to the bit. A change that no live row asks
    for is not computed. `draw` handles greedy rows.

    Args:
      changes: kinds of changes that rows may ask for. Other kinds are not even compiled, since all
        kinds together take longer to compile than everything else in a decode step.
    """

    def where_asked(
        may: bool, asked: Bool[Array, " B"], change: _Change, logits: Float[Array, "B V"]
    ) -> Float[Array, "B V"]:
        if not may:
            return logits

        def changed(logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
            return jnp.where(asked[:, None], change(logits, choice, history), logits)

        return jax.lax.cond((asked & history.live).any(), changed, lambda logits: logits, logits)

    drawing = ~choice.greedy
    logits = where_asked(changes.penalizes, choice.repetition_penalty != 1, _penalize, logits)
    early = history.generated + 1 < choice.min_new_tokens
    logits = where_asked(changes.goes_on, early, _go_on, logits)
    logits = jnp.where(drawing[:, None], logits / choice.temperature[:, None], logits)
    truncated = (choice.top_k > 0) | (choice.top_p < 1) | (choice.min_p > 0)
    return where_asked(changes.truncates, drawing & truncated, _truncate, logits)


def drawn_logprobs(
    logits: Float[Array, "B V"], tokens: Int[Array, " B"], batch_invariant: bool
) -> Float[Array, " B"]:
    """Computes the log-probabilities of sampled tokens under logits as they are sampled from.

    Args:
      batch_invariant: see `ModelConfig`.
    """
    if batch_invariant:
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)
        return chosen_logprobs(logits[:, None], chosen)[0][:, 0]
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    return jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]


def _penalize(
    logits: Float[Array, "B V"], choice: SamplingParams, history: RowHistory
) -> Float[Array, "B V"]:
    B, V = logits.shape
    positions = jnp.arange(history.tokens.shape[1])
    ids = jnp.where(positions <= history.newest[:, None], history.tokens, V)
    seen = jnp.zeros((B, V), bool).at[jnp.arange(B)[:, None], ids].set(True, mode="drop")
    penalty = choice.repetition_penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def _go_on(
    logits: Float[Array, "B V"], choice: SamplingParams, history: RowHistory
) -> Float[Array, "B V"]:
    ids = jnp.arange(logits.shape[1])
    stops = (choice.stop_ids[:, :, None] == ids).any(axis=1)
    return jnp.where(stops, EXCLUDED, logits)


def _truncate(
    logits: Float[Array, "B V"], choice: SamplingParams, history: RowHistory
) -> Float[Array, "B V"]:
    """Excludes all but the likeliest tokens, by top_k, top_p and min_p."""
    order = _order(logits)
    mass = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    everything = jnp.inf
    k = jnp.where(choice.top_k > 0, choice.top_k, everything)
    kept = _fewest(order, jnp.ones_like(logits), k)
    mass = jnp.where(kept, mass, 0.0)
    p = jnp.where(choice.top_p < 1, choice.top_p * mass.sum(axis=-1), everything)
    kept = kept & _fewest(order, mass, p) & (mass >= choice.min_p[:, None])
    return jnp.where(kept, logits, EXCLUDED)


def _order(logits: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Maps logits to integers that sort in the same order.

    The integer is the float's bits: all inverted if the float is negative, else only the sign bit.
    """
    bits = jax.lax.bitcast_convert_type(logits, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _fewest(
    order: UInt32[Array, "B V"], weights: Float[Array, "B V"], wanted: Float[Array, " B"]
) -> Bool[Array, "B V"]:
    """Selects the fewest entries, from the highest down, whose weights sum to `wanted`.

    Ties are resolved in order of position. If all weights sum to less, all entries are selected.
    """
    edge = _edge(order, weights, wanted)[:, None]
    above, level = order > edge, order == edge
    left = wanted - jnp.where(above, weights, 0.0).sum(axis=-1)
    from_behind = jnp.arange(order.shape[1], 0, -1, dtype=jnp.uint32)
    order = jnp.where(level, from_behind, 0)
    last = _edge(order, jnp.where(level, weights, 0.0), left)[:, None]
    return above | (level & (order >= last))


def _edge(
    order: UInt32[Array, "B V"], weights: Float[Array, "B V"], wanted: Float[Array, " B"]
) -> UInt32[Array, " B"]:
    """Finds the highest limit at or above which the entries' weights sum to at least `wanted`.

    The limit is found bit by bit, which compiles and runs faster than a sort.
    """

    def decide(i: Int[Array, ""], edge: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        higher = edge | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        held = jnp.where(order >= higher[:, None], weights, 0.0).sum(axis=-1)
        return jnp.where(held >= wanted, higher, edge)

    return jax.lax.fori_loop(0, 32, decide, jnp.zeros(order.shape[0], jnp.uint32))


def uniforms(keys: UInt32[Array, "B 2"], generated: Int[Array, " B"]) -> Float[Array, "B 2"]:
    """Draws two numbers in [0, 1) for each row, from the row's key and its token count alone.

    Each row takes one Threefry block (Parallel Random Numbers: As Easy as 1, 2, 3): the token count
    is the counter, and the two words of the result give 24 bits each.
    """

    counts = jnp.stack([generated, jnp.zeros_like(generated)], axis=1).astype(jnp.uint32)
    bits = jax.vmap(threefry_2x32)(keys, counts)
    return (bits >> 8).astype(jnp.float32) * 2**-24


def draw(
    numbers: Float[Array, "B 2"], logits: Float[Array, "B V"], greedy: Bool[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Samples a token for each row from softmax(logits), by inverting the cumulative distribution.

    The first number chooses one of about √V blocks of tokens, and the second a token in it. So no
    array of V random numbers is needed, and sums stay short enough for float32.

    Args:
      numbers: uniform numbers in [0, 1); see `uniforms`.
      logits: −∞ where excluded; at least one in each row is not excluded.
      greedy: rows that take the likeliest token instead; its probability is then 1.

    Returns:
      (tokens, logprobs). A log-probability is NaN where a logit is NaN or +∞, or all are −∞; the
      token then has no meaning.
    """
    B, V = logits.shape
    width = 1 << ((V - 1).bit_length() + 1) // 2
    blocks = -(-V // width)
    peak = logits.max(axis=-1)
    mass = jnp.exp(logits - peak[:, None])
    mass = jnp.pad(mass, ((0, 0), (0, blocks * width - V))).reshape(B, blocks, width)
    of_blocks = mass.sum(axis=-1)
    block = _invert(numbers[:, 0], of_blocks)
    inside = _invert(numbers[:, 1], jnp.take_along_axis(mass, block[:, None, None], axis=1)[:, 0])
    tokens = block * width + inside
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    logprobs = chosen - peak - jnp.log(of_blocks.sum(axis=-1))
    best = jax.lax.cond(greedy.any(), lambda: _likeliest(logits, peak), lambda: tokens)
    certain = jnp.where(jnp.isfinite(peak), 0.0, jnp.nan)
    return jnp.where(greedy, best, tokens), jnp.where(greedy, certain, logprobs)


def _likeliest(logits: Float[Array, "B V"], peak: Float[Array, " B"]) -> Int[Array, " B"]:
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)
    return jnp.where(logits == peak[:, None], ids, logits.shape[1]).min(axis=-1)


def _invert(numbers: Float[Array, " B"], mass: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Finds the first index where the running sum of masses exceeds a given share of the total.

    Sums are rounded. So entries without mass are skipped, even if the rounded sum exceeds the share
    there. If no sum exceeds a share close to the total, the last entry with mass is selected.
    """
    # A matrix product, because a cumulative sum takes longer to compile.
    upper = jnp.triu(jnp.ones((mass.shape[-1], mass.shape[-1])))
    total = jnp.matmul(mass, upper, precision=jax.lax.Precision.HIGHEST)
    possible = mass > 0
    passed = (total > numbers[:, None] * total[:, -1:]) & possible
    # Minima and maxima of indices, because argmax takes longer to compile.
    indices = jnp.arange(mass.shape[-1], dtype=jnp.int32)
    last = jnp.where(possible, indices, 0).max(axis=-1)
    return jnp.where(passed, indices, last[:, None]).min(axis=-1)
