"""Caches in lines, as GPUs and TPUs have them, on the CPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.cache import cached, empty_cache
from rl_sync.models.platform import compiling_for
from rl_sync.models.transformer import logits, prefill
from tests.models import tiny

TOKENS = np.random.default_rng(5).integers(2, 11, (3, 16))


def _config(name, **changes):
    """A model whose heads are half as wide as a line of a TPU."""
    return dataclasses.replace(tiny.VARIANTS[name], head_dim=64, query_scale=0.3, **changes)


@pytest.mark.nightly
@pytest.mark.samples("tpu-sliding-float32", "gpu-plain-float32")
@pytest.mark.parametrize(
    ("platform", "name", "dtype"),
    [("tpu", "sliding", "float32"), ("tpu", "plain", "bfloat16"), ("gpu", "plain", "float32")],
)
def test_decoding_from_lines_gives_the_logits_of_the_full_forward_pass(platform, name, dtype):
    config = _config(name, dtype=dtype)
    params = tiny.params(config)
    full = tiny.forward(config, params, TOKENS)
    # bfloat16 has 8 bits: two orders of rounding differ by some of them.
    tolerance = (1e-5 if dtype == "float32" else 0.03) * float(jnp.abs(full).max())
    with compiling_for(platform):
        filled = prefill(config, params, TOKENS[:, :5])[1]
        cache = jax.tree.map(
            lambda whole, part: whole.at[tuple(map(slice, part.shape))].set(part),
            empty_cache(config, 3, 16),
            filled,
        )
        step_of = jax.jit(tiny.decode_step, static_argnums=(0, 5))
        # Each row begins at a place of its own, and goes on over the ends of lines.
        for step in range(6):
            positions = np.array([5, 3, 2]) + step
            tokens = TOKENS[np.arange(3), positions]
            hidden, cache, _ = step_of(config, params, tokens, positions, cache, 11)
            scores = logits(config, params, hidden)
            np.testing.assert_allclose(scores, full[np.arange(3), positions], atol=tolerance)


@pytest.mark.gate
@pytest.mark.parametrize(("platform", "parts"), [("tpu", 2), ("gpu", 1)])
def test_one_token_of_each_row_with_a_position_is_written(platform, parts):
    config = _config("plain")
    params = tiny.params(config)
    L, K, H = config.num_layers, config.num_kv_heads, config.head_dim
    with compiling_for(platform):
        keys, values = np.random.default_rng(0).standard_normal((2, L, 3, 15, K, H), np.float32)
        cache = jax.vmap(functools.partial(cached, config))(keys, values)
        positions = np.array([7, -1, 14])
        after = tiny.decode_step(config, params, TOKENS[:, 0], positions, cache, 15).cache
    for new, old in zip(after, cache, strict=True):
        assert new.shape == (L, 1, 3, K, -(-15 // parts), parts * H)
        changed = np.asarray(new != old).reshape(L, 3, K, -1, H)
        assert np.argwhere(changed.any(axis=(0, 2, 4))).tolist() == [[0, 7], [2, 14]]
