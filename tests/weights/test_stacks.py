"""Stacks: fewer arrays for the same bits, which both sides plan alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.weights import stacks
from rl_sync.weights.digest import digest
from rl_sync.weights.stacks import Stacks

SHAPE = (4, 6)
NBYTES = 4 * 6 * 4


@pytest.fixture
def of_two(monkeypatch):
    """Makes stacks of two leaves of SHAPE."""
    monkeypatch.setattr(stacks, "STACK_BYTES", 2 * NBYTES + 1)


def sharded(axis: int) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return NamedSharding(mesh, PartitionSpec(*("x" if at == axis else None for at in (0, 1))))


def make_params(sharding: NamedSharding | None = None) -> dict:
    """Makes five leaves of one shape, one of them with another dtype, and some others."""
    drawn = np.random.default_rng(0).normal(size=(5, *SHAPE)).astype(np.float32)
    layers = [jax.device_put(x, sharding) for x in drawn]
    layers[2] = layers[2].astype(jnp.bfloat16)
    return {
        "layers": layers,
        "scales": [jnp.float32(2), jnp.float32(3)],
        "large": jnp.ones((50,)),
        "empty": [jnp.zeros((0, 2)), jnp.zeros((0, 2))],
    }


def test_what_is_stacked_comes_back_to_the_bit(of_two):
    params = make_params()
    stacks = Stacks(params)
    stacked = stacks.stack(params)
    back = stacks.unstack(stacked)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert digest(back) == digest(params)
    assert not stacked, "what was taken apart is not held"


def test_leaves_of_one_shape_and_dtype_go_together_up_to_a_size(of_two):
    shapes = {
        name: (like.shape, like.dtype.name) for name, like in Stacks(make_params()).like.items()
    }
    assert sorted(shapes.values()) == sorted(
        [
            ((2, *SHAPE), "float32"),
            ((2, *SHAPE), "float32"),
            (SHAPE, "bfloat16"),
            ((2,), "float32"),
            ((50,), "float32"),
            ((2, 0, 2), "float32"),
        ]
    )
    assert shapes["layers/2"] == (SHAPE, "bfloat16"), "what is alone keeps its name"


def test_a_stack_is_as_announced(of_two):
    params = make_params(sharded(0))
    stacks = Stacks(params)
    for name, array in stacks.stack(params).items():
        like = stacks.like[name]
        assert (array.shape, array.dtype) == (like.shape, like.dtype)
        if like.sharding is not None:
            assert array.sharding.is_equivalent_to(like.sharding, array.ndim)


def test_both_sides_plan_alike_whatever_their_shardings(of_two):
    sent, wanted = make_params(sharded(0)), make_params(sharded(1))
    trainer, explorer = Stacks(sent), Stacks(wanted)
    moved = {
        name: jax.device_put(array, explorer.like[name].sharding)
        for name, array in trainer.stack(sent).items()
    }
    received = explorer.unstack(moved)
    assert digest(received) == digest(sent)
    for leaf, like in zip(jax.tree.leaves(received), jax.tree.leaves(wanted), strict=True):
        assert not like.committed or leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim)


def test_leaves_that_lie_in_different_ways_can_go_together():
    params = {
        "rows": jax.device_put(np.ones(SHAPE, np.float32), sharded(0)),
        "columns": jax.device_put(np.full(SHAPE, 2, np.float32), sharded(1)),
    }
    stacks = Stacks(params)
    stacked = stacks.stack(params)
    ((name, like),) = stacks.like.items()
    assert stacked[name].sharding == like.sharding
    back = stacks.unstack(stacked)
    assert {name: leaf.sharding for name, leaf in back.items()} == {
        name: leaf.sharding for name, leaf in params.items()
    }
    assert digest(back) == digest(params)


def test_a_stack_outlives_the_donation_of_its_leaves():
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = {"a": jnp.arange(1000.0), "b": jnp.arange(1000.0), "c": jnp.arange(10.0)}
    expected = digest(params)
    stacks = Stacks(params)
    stacked = stacks.stack(params)
    overwrite(params)
    assert digest(stacks.unstack(stacked)) == expected


def test_stacks_of_other_leaves_have_other_names():
    x = jnp.ones(SHAPE)
    names = [
        set(Stacks(dict.fromkeys(leaves, x)).like)
        for leaves in (["a", "b", "d"], ["a", "c", "d"], ["a", "b", "c", "d"])
    ]
    assert not names[0] & names[1]
    assert not names[0] & names[2]


def test_unstacking_compiles_once_for_stacks_that_are_alike(of_two):
    x = jnp.ones(SHAPE)
    stacks._splitter.cache_clear()
    plan = Stacks([x] * 8)
    plan.unstack(plan.stack([x] * 8))
    assert len(plan.like) == 4
    assert stacks._splitter((None, None))._cache_size() == 1


def test_what_is_taken_apart_is_let_go_before_the_next(of_two, monkeypatch):
    params = [jnp.full(SHAPE, i, jnp.float32) for i in range(6)]
    plan = Stacks(params)
    stacked = plan.stack(params)
    splitter, left = stacks._splitter, []

    def noting(shardings):
        def split(array):
            left.append(len(stacked))
            return splitter(shardings)(array)

        return split

    monkeypatch.setattr(stacks, "_splitter", noting)
    plan.unstack(stacked)
    assert left == [2, 1, 0]
