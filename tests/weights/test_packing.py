"""Packing keeps every bit, whatever the dtype and wherever a piece is cut out."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.weights import packing
from rl_sync.weights.packing import pack, unpack
from rl_sync.weights.pieces import Piece

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint16, jnp.bool_)
SHAPES = ((), (1,), (3,), (5, 7), (6, 4, 5))


def random_bits(seed: int, shape: tuple[int, ...], dtype) -> jax.Array:
    """Makes an array of random bits, so with NaNs with payloads."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        return jnp.asarray(raw[..., 0] > 127)
    return jnp.asarray(raw.view(dtype).reshape(shape))


def whole(shape: tuple[int, ...]) -> tuple:
    return tuple((0, size) for size in shape)


def numbered(items: list) -> dict:
    return dict(enumerate(items))


def carry(arrays: list, into: list, pieces: list, held: list, kept: list, words: int) -> list:
    """Packs pieces of some arrays, unpacks them, and puts them into other arrays."""
    bucket = pack(pieces, numbered(arrays), numbered(held), words)
    assert (bucket.shape, bucket.dtype) == ((words,), jnp.uint32)
    dtypes = {leaf: x.dtype for leaf, x in enumerate(arrays)}
    filled = unpack(pieces, bucket, pieces, numbered(into), held=numbered(kept), dtypes=dtypes)
    return [filled[leaf] for leaf in range(len(into))]


def test_every_dtype_and_odd_size_comes_back_to_the_bit():
    kinds = [(shape, dtype) for dtype in DTYPES for shape in SHAPES]
    arrays = [random_bits(i, *kind) for i, kind in enumerate(kinds)]
    boxes = [whole(shape) for shape, _ in kinds]
    pieces = [Piece(i, box) for i, box in enumerate(boxes)]
    words = sum(math.ceil(x.nbytes / 4) for x in arrays)
    blank = [jnp.zeros(*kind) for kind in kinds]
    back = carry(arrays, blank, pieces, boxes, boxes, words + 3)
    for ours, theirs in zip(back, arrays, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_a_piece_goes_from_one_devices_shard_into_anothers():
    """Of a parameter of 6 by 8, one device holds rows 2 to 6, the other columns 4 to 8."""
    full = random_bits(0, (6, 8), jnp.bfloat16)
    rows, columns = ((2, 6), (0, 8)), ((0, 6), (4, 8))
    pieces = [Piece(0, ((3, 5), (5, 7)))]
    before = random_bits(1, (6, 4), jnp.bfloat16)
    (got,) = carry([full[2:6]], [jnp.copy(before)], pieces, [rows], [columns], 2)
    expected = np.asarray(before).copy()
    expected[3:5, 1:3] = np.asarray(full)[3:5, 5:7]
    assert np.asarray(got).tobytes() == expected.tobytes()


def test_without_a_least_number_there_are_just_the_words_of_the_pieces():
    arrays = {0: random_bits(0, (3,), jnp.int8), 1: random_bits(1, (2,), jnp.float32)}
    held = {0: whole((3,)), 1: whole((2,))}
    assert pack([Piece(*item) for item in held.items()], arrays, held).shape == (3,)


def test_pieces_of_one_size_compile_once_and_land_in_the_arrays_own_memory():
    array, blank = random_bits(0, (12, 5), jnp.float32), jnp.zeros((12, 5), jnp.float32)
    programs = packing._pack, packing._unpack
    compiled = [program._cache_size() for program in programs]
    boxes = [whole((12, 5))]
    (got,), places = [blank], []
    for low in range(0, 12, 3):
        places.append(got.unsafe_buffer_pointer())
        (got,) = carry([array], [got], [Piece(0, ((low, low + 3), (0, 5)))], boxes, boxes, 15)
    np.testing.assert_array_equal(np.asarray(got).view(np.int32), np.asarray(array).view(np.int32))
    # None, if another test has compiled for that size.
    for program, before in zip(programs, compiled, strict=True):
        assert program._cache_size() - before <= 1
    assert len(set(places)) == 1
