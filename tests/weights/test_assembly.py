"""Assemblies: pieces in any order become the device's own parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.weights.assembly import Assembly
from rl_sync.weights.packing import pack
from rl_sync.weights.pieces import Piece
from tests.weights.test_packing import random_bits, whole

ROWS = ((2, 6), (0, 8))
"""The region that the device has of a leaf of 6 by 8."""


def test_of_a_piece_only_what_the_device_will_have_is_kept():
    full = random_bits(0, (6, 8), jnp.bfloat16)
    pieces = [Piece(0, ((0, 6), (4, 8))), Piece(0, ((0, 6), (0, 4))), Piece(0, ((0, 2), (0, 8)))]
    values = [full[:, 4:], full[:, :4], full[:2]]
    assembly = Assembly(jax.devices()[0], {0: full.dtype}, {0: ROWS})
    assembly.add(pieces, values)
    assert np.asarray(assembly.pop(0)).tobytes() == np.asarray(full[2:]).tobytes()


def test_pieces_of_leaves_that_the_device_will_not_have_are_left_out():
    arrays = {0: random_bits(0, (6, 8), jnp.float16), 1: random_bits(1, (3,), jnp.bool_)}
    held = {0: whole((6, 8)), 1: whole((3,))}
    pieces = [Piece(1, held[1]), Piece(0, held[0])]
    dtypes = {leaf: array.dtype for leaf, array in arrays.items()}
    assembly = Assembly(jax.devices()[0], dtypes, {0: ROWS})
    assembly.add_packed(pieces, pack(pieces, arrays, held))
    assert np.asarray(assembly.pop(0)).tobytes() == np.asarray(arrays[0][2:]).tobytes()


def test_a_piece_that_is_the_whole_part_is_kept_where_it_is():
    part = random_bits(0, (4, 8), jnp.float32)
    assembly = Assembly(jax.devices()[0], {0: part.dtype}, {0: ROWS})
    assembly.add([Piece(0, ROWS)], [part])
    assert assembly.pop(0) is part


def test_parts_of_which_nothing_arrives_are_zeros_on_the_device():
    device = jax.devices()[1]
    empty = Assembly(device, {0: np.dtype(np.float32)}, {0: ((0, 0), (0, 3))}).pop(0)
    assert (empty.shape, empty.devices()) == ((0, 3), {device})
