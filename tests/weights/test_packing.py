"""Packing keeps every bit, bounds its buckets, and is planned once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights.digest import digest
from rl_sync.weights.packing import plan_packing

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint16, jnp.bool_)


def random_bits(seed: int, shape: tuple[int, ...], dtype) -> jax.Array:
    """An array whose bits are random, so NaNs with payloads among them."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        return jnp.asarray(raw[..., 0] > 127)
    return jnp.asarray(raw.view(dtype).reshape(shape))


def mixed_tree() -> dict:
    shapes = [(), (1,), (3,), (5, 7), (0, 4), (64, 65)]
    return {
        np.dtype(dtype).name: [random_bits(i, shape, dtype) for i, shape in enumerate(shapes)]
        for dtype in DTYPES
    }


@pytest.mark.parametrize("bucket_bytes", [4, 100, 8192, 2**20])
def test_every_dtype_and_odd_size_comes_back_to_the_bit(bucket_bytes):
    tree = mixed_tree()
    if bucket_bytes <= 100:
        tree = {name: leaves[:5] for name, leaves in tree.items()}
    plan = plan_packing(tree, bucket_bytes)
    buckets = jax.jit(plan.pack)(tree)
    assert all(b.shape == (plan.bucket_words,) and b.dtype == jnp.uint32 for b in buckets)
    assert all(b.nbytes <= bucket_bytes for b in buckets)
    back = jax.jit(plan.unpack)(buckets)
    assert digest(back) == digest(tree)
    for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_many_small_leaves_share_few_buckets():
    tree = [jnp.full((10,), i, jnp.float32) for i in range(200)]
    plan = plan_packing(tree, 4096)
    assert (plan.total_words, plan.buckets, plan.bucket_words) == (2000, 2, 1000)


def test_a_large_leaf_is_cut():
    plan = plan_packing([jax.ShapeDtypeStruct((1025,), jnp.float32)], 4096)
    assert (plan.buckets, plan.bucket_words) == (2, 513)


def test_two_halves_fill_a_word():
    plan = plan_packing([jax.ShapeDtypeStruct((5,), jnp.bfloat16)], 4096)
    assert (plan.total_words, plan.bucket_words) == (3, 3)


def test_a_tree_without_elements_needs_no_bucket():
    plan = plan_packing({"none": jnp.zeros((0, 3))}, 4096)
    assert plan.buckets == 0
    assert plan.unpack(plan.pack({"none": jnp.zeros((0, 3))}))["none"].shape == (0, 3)


def test_a_bucket_outlives_the_donation_of_the_only_leaf_in_it():
    tree = {"w": jnp.arange(8, dtype=jnp.uint32)}
    plan = plan_packing(tree, 32)
    (bucket,) = jax.jit(plan.pack)(tree)
    jax.jit(lambda x: x + 1, donate_argnums=0)(tree["w"]).block_until_ready()
    assert bucket.tolist() == list(range(8))


def test_packing_compiles_once_for_all_versions():
    tree = mixed_tree()
    pack = jax.jit(plan_packing(tree, 4096).pack)
    for _ in range(3):
        pack(jax.tree.map(jnp.copy, tree))
    assert pack._cache_size() == 1


def test_parameters_of_another_model_are_refused_by_name():
    plan = plan_packing({"w": jnp.zeros((2, 3))}, 4096)
    with pytest.raises(ValueError, match=r"Parameter \['w'\] is float32\[3, 2\].*float32\[2, 3\]"):
        plan.pack({"w": jnp.zeros((3, 2))})
    with pytest.raises(ValueError, match="structure"):
        plan.pack({"v": jnp.zeros((2, 3))})


def test_a_dtype_without_plain_bits_is_refused_when_planned():
    with pytest.raises(TypeError, match=r"\['k'\] has dtype"):
        plan_packing({"k": jax.random.key(0)}, 4096)


def test_a_bucket_too_small_for_a_word_is_refused():
    with pytest.raises(ValueError, match="bucket_bytes=3"):
        plan_packing({}, 3)
