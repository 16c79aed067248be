"""Loads: what is sent is the same to the bit, and is not copied without need."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights.loads import Landing, load, wire_dtype
from rl_sync.weights.routes import Bucket, Piece
from tests.weights.test_packing import DTYPES, random_bits, whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_parameter_travels_from_where_it_is_and_others_are_cut_out(dtype):
    device = jax.devices()[0]
    first, second = random_bits(0, (6, 8), dtype), random_bits(1, (6, 8), dtype)
    before = np.asarray(first).copy(), np.asarray(second).copy()
    like = [jax.ShapeDtypeStruct((6, 8), dtype)] * 2
    boxes = [whole((6, 8))] * 2
    high, low = ((0, 3), (0, 8)), ((3, 6), (0, 8))
    turns = [
        Bucket((Piece(0, boxes[0]), Piece(1, low)), ()),
        Bucket((), (Piece(1, high),)),
    ]
    landing = Landing(device, like, boxes)
    for bucket, words in zip(turns, (0, 24), strict=True):
        sent = load(bucket, [first, second], boxes, words)
        assert all(x.dtype == wire_dtype(first.dtype, "cpu") for x in sent[: len(bucket.single)])
        if not words:
            assert sent[0].unsafe_buffer_pointer() == first.unsafe_buffer_pointer()
        landing.add(bucket, sent)
    for ours, theirs in zip(landing.arrays(), before, strict=True):
        assert ours.dtype == dtype
        assert np.asarray(ours).tobytes() == theirs.tobytes()


def test_a_device_without_small_pieces_sends_words_of_its_own_all_the_same():
    device = jax.devices()[1]
    array, box = jax.device_put(random_bits(0, (4, 4), jnp.float32), device), whole((4, 4))
    _, words = load(Bucket((Piece(0, box),), ()), [array], [box], 5)
    assert (words.shape, words.devices()) == ((5,), {device})


def test_what_never_arrives_is_zeros():
    landing = Landing(
        jax.devices()[0], [jax.ShapeDtypeStruct((0, 3), jnp.float32)], [whole((0, 3))]
    )
    assert landing.arrays()[0].shape == (0, 3)


def test_only_floats_of_less_than_32_bits_travel_as_integers_and_only_between_cpus():
    for dtype in map(np.dtype, DTYPES):
        narrow = dtype in (jnp.bfloat16, jnp.float16)
        assert wire_dtype(dtype, "cpu") == (np.dtype(np.uint16) if narrow else dtype)
        assert wire_dtype(dtype, "gpu") == dtype
