"""Shardings from logical axes."""

import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, undivided
from rl_sync.models.sharding import Layout, constrain, using
from rl_sync.models.shards import by_rows
from tests.models import tiny
from tests.models.meshes import RULES, layout


def cuts(on, axes, shape):
    return on.sharding(axes, shape).shard_shape(shape)


def test_a_mesh_of_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match="fsdp=4, tensor=2 has 8 devices, but this process has 4"):
        MeshShape(fsdp=4, tensor=2).mesh(jax.devices())
    with pytest.raises(ValueError, match="at least 1"):
        MeshShape(data=0)


def test_axes_are_cut_as_the_rules_say_and_the_first_rule_has_precedence():
    on = layout(data=2, fsdp=2)
    assert cuts(on, ("batch", "length"), (8, 6)) == (2, 6)
    # Of an activation fsdp cuts the rows, of a parameter the width.
    assert cuts(on, ("batch", "length", "embed"), (8, 6, 4)) == (2, 6, 4)
    assert cuts(on, ("embed", None, "mlp"), (8, 2, 6)) == (4, 2, 6)
    other = dataclasses.replace(on, rules=(("mlp", ("fsdp",)), *RULES))
    assert cuts(other, ("embed", None, "mlp"), (8, 2, 6)) == (8, 2, 3)


def test_an_axis_is_cut_along_as_many_mesh_axes_as_divide_it():
    on = layout(data=2, fsdp=2)
    assert cuts(on, ("batch",), (6,)) == (3,)
    assert cuts(on, ("batch",), (5,)) == (5,)


def test_what_cannot_be_cut_is_named():
    on = layout(fsdp=2, tensor=2)
    assert undivided(tiny.CONFIG, on) == ["embedding: vocab of 11 over tensor=2"]
    even = dataclasses.replace(tiny.CONFIG, vocab_size=12)
    assert undivided(even, on) == []


@pytest.mark.parametrize("sizes", [{"fsdp": 2, "tensor": 2}, {"tensor": 4}])
def test_a_mesh_without_devices_plans_what_one_with_devices_does(sizes):
    planned = abstract_params(tiny.CONFIG, Layout(MeshShape(**sizes).abstract(), RULES))
    real = abstract_params(tiny.CONFIG, layout(**sizes))
    parts = [
        jax.tree.map(lambda x: x.sharding.shard_shape(x.shape), tree) for tree in (planned, real)
    ]
    assert parts[0] == parts[1]


def test_a_function_compiles_once_for_each_layout_in_use():
    rows = np.zeros((4, 2), np.float32)

    @jax.jit
    def double(x):
        return constrain(x * 2, "batch")

    places = []
    for on in (layout(), layout(data=2), layout(data=4), layout(data=2)):
        with using(on):
            places.append(double(rows).sharding.shard_shape(rows.shape))
    assert places == [(4, 2), (2, 2), (1, 2), (2, 2)]


@pytest.mark.gate
@pytest.mark.parametrize("tensor", [2, 4])
def test_a_forward_pass_gathers_no_parameter_where_the_mesh_cuts_tensors(tensor):
    """Heads, the MLP's width and the vocabulary stay sharded: only sums are exchanged."""
    config = dataclasses.replace(tiny.CONFIG, vocab_size=12)
    on = layout(tensor=tensor).grouped(config.num_kv_heads)

    def forward(params, tokens):
        with using(on):
            return tiny.forward(config, params, tokens)

    tokens = jax.ShapeDtypeStruct((4, 8), np.int32, sharding=on.repeated)
    text = jax.jit(forward).lower(abstract_params(config, on), tokens).compile().as_text()
    assert "all-reduce" in text
    assert not any(name in text for name in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.parametrize(
    ("mesh", "rows", "columns", "exchanged"),
    [
        ({"tensor": 4}, 8, 12, 2),
        ({"data": 2, "tensor": 2}, 8, 12, 2),
        ({"tensor": 4}, 6, 12, 6),  # Rows that do not divide evenly.
        ({"data": 2, "tensor": 2}, 8, 11, 4),  # Columns that do not.
    ],
)
def test_each_device_has_whole_rows_of_its_share(mesh, rows, columns, exchanged):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows, columns)), rng.standard_normal((rows, 3))
    seen = []

    def largest(x, y):
        seen.append((x.shape, y["y"].shape))
        return x.argmax(axis=1), y["y"].sum(axis=1)

    with using(layout(**mesh)):
        found = jax.jit(lambda x, y: by_rows(largest, x, ("batch", "vocab"), {"y": y}))(x, y)
    assert seen == [((exchanged, columns), (exchanged, 3))]
    np.testing.assert_array_equal(found[0], x.argmax(axis=1))
    np.testing.assert_allclose(found[1], y.sum(axis=1), rtol=1e-5)
