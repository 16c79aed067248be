"""Devices that share a key and value head, each with query heads of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.config import Lora
from rl_sync.models.placement import abstract_params, shardings, undivided
from rl_sync.models.sharding import using
from rl_sync.models.transformer import hidden_states, logits
from tests.models import tiny
from tests.models.meshes import layout
from tests.weights.test_cells import assert_regions

CONFIG = dataclasses.replace(tiny.CONFIG, vocab_size=12, num_layers=1, num_heads=8)
TOKENS = np.random.default_rng(0).integers(0, 12, (4, 8))


@pytest.mark.nightly
@pytest.mark.samples("mesh2-changes2")
@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({"tensor": 4}, {"qkv_bias": True, "qk_norm": True}),
        ({"fsdp": 2, "tensor": 2}, {"num_kv_heads": 1, "lora": Lora(2, 4.0)}),
        ({"tensor": 4}, {"num_heads": 6}),  # 3 query heads cannot be cut in 2.
    ],
)
def test_values_and_gradients_are_those_of_one_device(mesh, changes):
    config = dataclasses.replace(CONFIG, **changes)
    params, on = tiny.params(config), layout(**mesh).grouped(config.num_kv_heads)
    assert on.mesh.shape["group"] == 2

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        scores = logits(config, params, hidden_states(config, params, TOKENS))
        return jax.nn.log_softmax(scores)[..., 3].sum()

    expected = loss(params)
    abstract = abstract_params(config, on)
    with using(on):
        found = loss(jax.device_put(params, shardings(abstract)))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one = jax.device_get(one)  # Of devices that are not those of the other.
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))


def test_each_device_has_one_kv_head_and_its_share_of_the_output_kernel():
    on = layout(tensor=4).grouped(2)
    block = abstract_params(CONFIG, on)["blocks"]["attention"]
    shapes = {name: leaf.sharding.shard_shape(leaf.shape) for name, leaf in block.items()}
    assert shapes == {"qkv": (1, 16, 1, 4 + 2, 4), "out": (1, 1, 4 // 2, 4, 16)}
    # A plan knows without being told.
    assert undivided(CONFIG, layout(tensor=4)) == undivided(CONFIG, on) == []
    uneven = dataclasses.replace(CONFIG, num_heads=6)
    assert undivided(uneven, on) == [
        "blocks/attention/out: heads of 3 over the 2 devices that share a kv head"
    ]


def test_transfers_know_the_regions_of_such_devices():
    on = layout(tensor=4).grouped(2)
    assert_regions(list(on.mesh.devices.flat), abstract_params(CONFIG, on))
