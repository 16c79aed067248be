"""Loads arrive the same to the bit, and are not copied without need."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights.assembly import Assembly
from rl_sync.weights.loads import load, unload, viewed, wire_dtype
from rl_sync.weights.pieces import Piece
from rl_sync.weights.routes import Bucket
from tests.weights.test_packing import DTYPES, numbered, random_bits, whole


def on_wire(array: jax.Array) -> jax.Array:
    return viewed(array, wire_dtype(array.dtype, "cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("copy", [False, True])
def test_a_whole_leaf_travels_from_where_it_is_and_others_are_cut_out(dtype, copy):
    first, second = random_bits(0, (6, 8), dtype), random_bits(1, (6, 8), dtype)
    arrays = numbered([on_wire(first), on_wire(second)])
    held = numbered([whole((6, 8))] * 2)
    high, low = ((0, 3), (0, 8)), ((3, 6), (0, 8))
    small = (Piece(1, high),)
    turns = [Bucket((Piece(0, held[0]), Piece(1, low)), small), Bucket((None, None), small)]
    wire = {leaf: array.dtype for leaf, array in arrays.items()}
    assembly = Assembly(jax.devices()[0], wire, held)
    sent = load(turns[0], arrays, held, 24, copy=copy)
    assert [sent[place].shape for place in range(3)] == [(6, 8), (3, 8), (24,)]
    assert (sent[0].unsafe_buffer_pointer() == first.unsafe_buffer_pointer()) is not copy
    assert load(turns[1], arrays, held, 24, copy=copy).keys() == {2}
    unload(turns[0], [sent[0], sent[1], sent[2]], assembly)
    for leaf, theirs in enumerate([first, second]):
        ours = viewed(assembly.pop(leaf), theirs.dtype)
        assert ours.dtype == dtype
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_only_floats_of_less_than_32_bits_travel_as_integers_and_only_between_cpus():
    for dtype in map(np.dtype, DTYPES):
        narrow = dtype in (jnp.bfloat16, jnp.float16)
        assert wire_dtype(dtype, "cpu") == (np.dtype(np.uint16) if narrow else dtype)
        assert wire_dtype(dtype, "gpu") == dtype
