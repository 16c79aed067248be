"""Changes of parts to the version before, found on the device that holds both versions.

A part is compared in one pass over both versions, which leaves a mask: a bit for each element. The
changed values are gathered by the mask, so the rest of the work is on a thirty-second of the
elements, and only the mask and the values cross to the host. Bits are compared, not values: NaNs
with equal bits are the same, 0 and -0 are not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32, Shaped, UInt, UInt32

from rl_sync.weights.copies import on_host
from rl_sync.weights.deltas.encoding import Bytes, ChangedElements
from rl_sync.weights.digest import UNSIGNED

Parts = Mapping[int, Shaped[Array, "*part"]]
"""Parts of one version on the devices, by number."""

FIRST_RUNS = 2
"""Runs of values that are gathered of a part of which it is not known how much changes."""

_WORD_BITS = 32
_LEAST_BYTES = 64 << 10
"""Size of a part below which it crosses as a whole: a program of its own would not pay."""
_MOST_ELEMENTS = 2**31 - 1  # Positions are 32-bit integers.
_RUNS = 64
_MORE = 1.25
"""Values that are gathered ahead, in those that changed the last time."""
_WORTHWHILE = 0.5
"""Share of a part's bytes up to which its changes cross, not the whole part."""


class DeviceChanges(NamedTuple):
    """Changes of a part, on its device.

    Attributes:
      words: see `ChangedElements.mask`.
      ends: number of changed elements up to the end of each word.
      changed: number of changed elements.
      runs: values of the first changed elements; a run has those of a 64th of the part.
    """

    words: UInt32[Array, " words"]
    ends: Int32[Array, " words"]
    changed: Int32[Array, ""]
    runs: list[UInt[Array, "run size"]]


def device_changes(new: Parts, base: Parts, runs: Mapping[int, int]) -> dict[int, DeviceChanges]:
    """Compares two versions on the devices, without waiting.

    Args:
      new, base: the versions, with the same parts.
      runs: number of runs of values to gather of each part; `FIRST_RUNS` by default. Further ones
        are gathered in `fetched`, and wait for what the devices were given to do meanwhile.

    Returns:
      Changes of the parts that are large enough to gain by it, by number.
    """
    changes = {}
    for number, part in new.items():
        if part.nbytes < max(_LEAST_BYTES, 1) or part.size > _MOST_ELEMENTS:
            continue
        words, ends, changed = _compared(part, base[number])
        one = DeviceChanges(words, ends, changed, [])
        first = range(runs.get(number, FIRST_RUNS))
        changes[number] = one._replace(runs=[_run(part, one, at) for at in first])
    return changes


def runs_of(part: Shaped[Array, "*part"], count: int) -> int:
    """Returns the number of runs that hold some number of changed values of a part."""
    return -(-count // _run_length(part))


def runs_needed(parts: Parts, found: Mapping[int, Bytes | ChangedElements]) -> dict[int, int]:
    """Returns the runs to gather ahead of each part, if about as much changes as the last time.

    Args:
      parts: a version.
      found: what `fetched` returned of it.
    """
    return {
        number: max(1, runs_of(parts[number], round(_MORE * len(one.values))))
        if isinstance(one, ChangedElements)
        else 0
        for number, one in found.items()
    }


def fetched(
    parts: Parts, changes: Mapping[int, DeviceChanges]
) -> dict[int, Bytes | ChangedElements]:
    """Fetches a version to the host.

    Args:
      parts: the version.
      changes: its changes, by part. Parts without, or of which much changed, are fetched whole.
    """
    for one in changes.values():
        one.changed.copy_to_host_async()
    counts = {number: int(one.changed) for number, one in changes.items()}
    needed = {
        number: _needed(part, changes[number], counts[number]) if number in changes else None
        for number, part in parts.items()
    }
    arriving = on_host(
        array
        for number, arrays in needed.items()
        for array in ([parts[number]] if arrays is None else arrays)
    )
    found: dict[int, Bytes | ChangedElements] = {}
    for number, arrays in needed.items():
        if arrays is None:
            there = np.ascontiguousarray(next(arriving))
            found[number] = there.reshape(-1).view(np.uint8)
        elif arrays:
            words, *rows = (next(arriving) for _ in arrays)
            found[number] = ChangedElements(words, _values(rows, parts[number], counts[number]))
        else:
            words = np.zeros(changes[number].words.shape, np.uint32)
            found[number] = ChangedElements(words, _values([], parts[number], 0))
    return found


def _needed(part: Shaped[Array, "*part"], one: DeviceChanges, count: int) -> list[Array] | None:
    """Returns the arrays that tell a part's changes; None if the whole part is to cross."""
    if one.words.nbytes + count * part.dtype.itemsize > _WORTHWHILE * part.nbytes:
        return None
    due = runs_of(part, count)
    more = [_run(part, one, at) for at in range(len(one.runs), due)]
    return [one.words, *one.runs[:due], *more] if count else []


def _values(
    runs: list[Shaped[np.ndarray, "run size"]], part: Shaped[Array, "*part"], count: int
) -> Shaped[np.ndarray, " changed"]:
    dtype = np.dtype(f"u{part.dtype.itemsize}")
    if not runs:
        return np.zeros(0, dtype)
    return np.concatenate(runs)[:count].reshape(-1).view(dtype)


def _run(part: Shaped[Array, "*part"], one: DeviceChanges, at: int) -> UInt[Array, "run size"]:
    length = _run_length(part)
    return _gathered(part, one.words, one.ends, np.int32(at * length), length=length)


def _run_length(part: Shaped[Array, "*part"]) -> int:
    return -(-part.size // _RUNS)


@jax.jit
def _compared(
    new: Shaped[Array, "*part"], base: Shaped[Array, "*part"]
) -> tuple[UInt32[Array, " words"], Int32[Array, " words"], Int32[Array, ""]]:
    """Returns the words, ends and number of `DeviceChanges`."""
    differs = jnp.any(_bits(new) != _bits(base), axis=1)
    differs = jnp.pad(differs, (0, -new.size % _WORD_BITS)).reshape(-1, _WORD_BITS)
    places = jnp.arange(_WORD_BITS, dtype=jnp.uint32)
    words = jnp.sum(differs.astype(jnp.uint32) << places, axis=1, dtype=jnp.uint32)
    ends = jnp.cumsum(lax.population_count(words).astype(jnp.int32))
    return words, ends, ends[-1]


@functools.partial(jax.jit, static_argnames="length")
def _gathered(
    part: Shaped[Array, "*part"],
    words: UInt32[Array, " words"],
    ends: Int32[Array, " words"],
    first: Int32[Array, ""],
    *,
    length: int,
) -> UInt[Array, "run size"]:
    """Gathers values of changed elements from the `first` one on; any values after the last one.

    Each value is looked up, so the work grows with the changes, not with the part.
    """
    ranks = first + jnp.arange(length, dtype=jnp.int32)
    after = jnp.searchsorted(ends, ranks, side="right").astype(jnp.int32)
    at = jnp.minimum(after, len(words) - 1)
    word = words[at]
    rank = ranks - (ends[at] - lax.population_count(word).astype(jnp.int32))
    place = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):  # Half of the word by half, to the bit with this rank.
        low = word & jnp.uint32((1 << width) - 1)
        below = lax.population_count(low).astype(jnp.int32)
        higher = rank >= below
        rank = jnp.where(higher, rank - below, rank)
        place = jnp.where(higher, place + width, place)
        word = jnp.where(higher, word >> width, low)
    position = jnp.minimum(at * _WORD_BITS + place, part.size - 1)
    return _bits(part).at[position].get(mode="promise_in_bounds")


def _bits(x: Shaped[Array, "*part"]) -> UInt[Array, "elements size"]:
    """Reads the bits of elements in row-major order; two words of those with 8 bytes."""
    unsigned = (
        x.astype(jnp.uint8)
        if x.dtype == jnp.bool_
        else lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    )
    return unsigned.reshape(x.size, -1)
