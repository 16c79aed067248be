"""Pieces keep every bit, whatever the dtype, and in any order become the device's own parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights import assembly
from rl_sync.weights.assembly import LeafAssembly, take
from rl_sync.weights.cells import Piece

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint16, jnp.bool_)
ROWS = ((2, 6), (0, 8))
"""The region that the device has of a leaf of 6 by 8."""


def random_bits(seed: int, shape: tuple[int, ...], dtype) -> jax.Array:
    """Makes an array of random bits, so with NaNs with payloads."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        return jnp.asarray(raw[..., 0] > 127)
    return jnp.asarray(raw.view(dtype).reshape(shape))


def whole(shape: tuple[int, ...]) -> tuple:
    return tuple((0, size) for size in shape)


def assert_same_bits(ours: jax.Array, theirs: jax.Array) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_array_is_taken_as_it_is_and_others_are_cut_out(dtype):
    arrays = {0: random_bits(0, (6, 8), dtype), 1: random_bits(1, (4, 8), dtype)}
    held = {0: whole((6, 8)), 1: ROWS}
    first, second = take([Piece(0, held[0]), Piece(1, ((3, 5), (5, 7)))], arrays, held)
    assert first is arrays[0]
    assert_same_bits(second, arrays[1][1:3, 5:7])


def test_of_a_piece_only_what_the_device_will_have_is_kept():
    full = random_bits(0, (6, 8), jnp.int16)
    pieces = [Piece(0, ((0, 6), (4, 8))), Piece(0, ((0, 6), (0, 4))), Piece(0, ((0, 2), (0, 8)))]
    values = [full[:, 4:], full[:, :4], full[:2]]
    assembly = LeafAssembly(jax.devices()[0], {0: full.dtype}, {0: ROWS})
    assembly.add(pieces, values)
    assert_same_bits(assembly.pop(0), full[2:])


def test_pieces_of_leaves_that_the_device_will_not_have_are_left_out():
    arrays = {0: random_bits(0, (6, 8), jnp.float32), 1: random_bits(1, (3,), jnp.bool_)}
    pieces = [Piece(1, whole((3,))), Piece(0, whole((6, 8)))]
    assembly = LeafAssembly(jax.devices()[0], {0: arrays[0].dtype}, {0: ROWS})
    assembly.add(pieces, [arrays[1], arrays[0]])
    assert_same_bits(assembly.pop(0), arrays[0][2:])


def test_a_piece_that_is_the_whole_part_is_kept_where_it_is():
    part = random_bits(0, (4, 8), jnp.float32)
    assembly = LeafAssembly(jax.devices()[0], {0: part.dtype}, {0: ROWS})
    assembly.add([Piece(0, ROWS)], [part])
    assert assembly.pop(0) is part


def test_parts_of_which_nothing_arrives_are_zeros_on_the_device():
    device = jax.devices()[1]
    empty = LeafAssembly(device, {0: np.dtype(np.float32)}, {0: ((0, 0), (0, 3))}).pop(0)
    assert (empty.shape, empty.devices()) == ((0, 3), {device})


def test_pieces_of_one_shape_compile_once_and_land_in_the_arrays_own_memory():
    array, held = random_bits(0, (12, 5), jnp.int32), {0: whole((12, 5))}
    programs = assembly._take, assembly._put
    compiled = [program._cache_size() for program in programs]
    putting, places = LeafAssembly(jax.devices()[0], {0: array.dtype}, held), set()
    for low in range(0, 12, 3):
        piece = Piece(0, ((low, low + 3), (0, 5)))
        putting.add([piece], take([piece], {0: array}, held))
        places.add(putting._arrays[0].unsafe_buffer_pointer())
    assert_same_bits(putting.pop(0), array)
    # None, if another test has compiled for that size.
    for program, before in zip(programs, compiled, strict=True):
        assert program._cache_size() - before <= 1
    assert len(places) == 1
