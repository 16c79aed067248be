"""Memory from shapes: exact for arithmetic, and the residuals of differentiation."""

import dataclasses
from typing import get_args

import jax
import numpy as np
import pytest

from rl_sync.models.config import ModelConfig, Remat
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import param_shapes
from rl_sync.plan.memory import model_memory
from tests.models import tiny

pytestmark = pytest.mark.gate

HUGE = ModelConfig(
    151_936, 8192, 80, 64, 8, 128, 29_568, 32_768, tie_embeddings=False, dtype="bfloat16"
)


def test_parameters_and_cache_are_counted_to_the_byte():
    counted = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tiny.params()))
    assert model_memory.tree_bytes(param_shapes(tiny.CONFIG)) == counted
    # Keys and values, 2 layers, 3 rows, 2 heads, 10 slots of 4 float32.
    assert (
        model_memory.cache_bytes(tiny.CONFIG, 3, 10, Layout.single()) == 2 * 2 * 3 * 2 * 10 * 4 * 4
    )
    half = dataclasses.replace(tiny.CONFIG, dtype="bfloat16")
    assert model_memory.cache_bytes(half, 3, 10, Layout.single()) == 2 * 2 * 3 * 2 * 10 * 4 * 2


def test_a_model_far_beyond_this_machine_is_counted():
    parameters = model_memory.tree_bytes(param_shapes(HUGE))
    assert 4 * 70e9 < parameters < 4 * 75e9
    by_policy = {
        remat: model_memory.activation_bytes(dataclasses.replace(HUGE, remat=remat), (1, 4096))
        for remat in get_args(Remat)
    }
    assert by_policy["full"] == by_policy["attention"], "no kernel attends on CPUs"
    assert by_policy["full"] < by_policy["dots_no_batch"] < by_policy["dots"] < by_policy["none"]


def test_full_rematerialization_keeps_the_input_of_each_block():
    rows, length = sizes = 4, 16
    config = dataclasses.replace(tiny.CONFIG, remat="full")
    deeper = dataclasses.replace(config, num_layers=5)
    more = model_memory.activation_bytes(deeper, sizes) - model_memory.activation_bytes(
        config, sizes
    )
    a_block = rows * length * config.embed_dim * 4
    # And what tells one layer from another: a number, a window, a flag.
    assert 3 * a_block <= more <= 3 * (a_block + 16)


def test_activations_grow_with_rows_and_parameters_are_not_among_them():
    one, two = (model_memory.activation_bytes(tiny.CONFIG, (rows, 16)) for rows in (8, 16))
    assert 1.9 < two / one <= 2.0
    wide = dataclasses.replace(tiny.CONFIG, vocab_size=100_000)
    capped = model_memory.activation_bytes(wide, (1, 2), logits_bytes=1)
    assert capped < model_memory.tree_bytes(param_shapes(wide)) / 4
