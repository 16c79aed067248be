"""Loads arrive the same to the bit, and are not copied without need."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights.assembly import Assembly
from rl_sync.weights.loads import load, unload, wire_dtype
from rl_sync.weights.pieces import Piece
from rl_sync.weights.routes import Bucket
from tests.weights.test_packing import DTYPES, numbered, random_bits, whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_leaf_travels_from_where_it_is_and_others_are_cut_out(dtype):
    first, second = random_bits(0, (6, 8), dtype), random_bits(1, (6, 8), dtype)
    arrays, dtypes = numbered([first, second]), numbered([first.dtype] * 2)
    held = numbered([whole((6, 8))] * 2)
    high, low = ((0, 3), (0, 8)), ((3, 6), (0, 8))
    turns = [
        Bucket((Piece(0, held[0]), Piece(1, low)), ()),
        Bucket((), (Piece(1, high),)),
    ]
    assembly = Assembly(jax.devices()[0], dtypes, held)
    for bucket, words in zip(turns, (0, 24), strict=True):
        sent = load(bucket, arrays, held, words)
        assert all(x.dtype == wire_dtype(first.dtype, "cpu") for x in sent[: len(bucket.single)])
        if not words:
            assert sent[0].unsafe_buffer_pointer() == first.unsafe_buffer_pointer()
        unload(bucket, sent, dtypes, assembly)
    for leaf, theirs in arrays.items():
        ours = assembly.pop(leaf)
        assert ours.dtype == dtype
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_a_device_without_small_pieces_sends_words_of_its_own_all_the_same():
    device = jax.devices()[1]
    array, region = jax.device_put(random_bits(0, (4, 4), jnp.float32), device), whole((4, 4))
    _, words = load(Bucket((Piece(0, region),), ()), {0: array}, {0: region}, 5)
    assert (words.shape, words.devices()) == ((5,), {device})


def test_only_floats_of_less_than_32_bits_travel_as_integers_and_only_between_cpus():
    for dtype in map(np.dtype, DTYPES):
        narrow = dtype in (jnp.bfloat16, jnp.float16)
        assert wire_dtype(dtype, "cpu") == (np.dtype(np.uint16) if narrow else dtype)
        assert wire_dtype(dtype, "gpu") == dtype
