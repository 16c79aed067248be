import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import lora
from rl_sync.models.config import Lora, LoraTarget
from tests.models import tiny


def _names(tree):
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_split_takes_the_adapters_out_and_join_puts_them_back():
    params = tiny.params(dataclasses.replace(tiny.CONFIG, lora=Lora(2, 4.0)))
    adapters, base = lora.split(params)
    assert _names(adapters) == {name for name in _names(params) if "_lora" in name}
    assert _names(base) == {name for name in _names(params) if "_lora" not in name}
    joined = lora.join(adapters, base)
    assert jax.tree.structure(joined) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, joined, params)


def test_the_base_is_the_tree_of_the_model_without_adapters():
    _, base = lora.split(tiny.params(dataclasses.replace(tiny.CONFIG, lora=Lora(2, 4.0))))
    assert jax.tree.structure(base) == jax.tree.structure(tiny.params())


def test_a_model_without_adapters_is_all_base():
    params = tiny.params()
    adapters, base = lora.split(params)
    assert adapters == {}
    assert jax.tree.structure(lora.join(adapters, base)) == jax.tree.structure(params)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "targets", [("q",), ("k", "v", "o"), ("gate", "down"), get_args(LoraTarget)], ids="".join
)
def test_merged_parameters_compute_the_same_function(targets):
    config = dataclasses.replace(tiny.CONFIG, lora=Lora(2, 3.0, targets))
    params = tiny.params(config)
    merged = lora.merge(config, params)
    plain = lora.merged_config(config)
    assert plain == tiny.CONFIG
    assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, tiny.params())
    tokens = np.array([[3, 1, 4, 1, 5]], np.int32)
    np.testing.assert_allclose(
        tiny.forward(plain, merged, tokens), tiny.forward(config, params, tokens), atol=2e-5
    )
    base = lora.split(params)[1]
    change = tiny.forward(plain, base, tokens) - tiny.forward(plain, merged, tokens)
    assert np.abs(change).max() > 0.1
