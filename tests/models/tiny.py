"""A model that is small enough for tests, and moved off its neutral initial values."""

import jax

from rl_sync.models.config import ModelConfig
from rl_sync.models.transformer import init_params
from rl_sync.types import Params

CONFIG = ModelConfig(
    vocab_size=11,
    embed_dim=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_dim=24,
    max_length=16,
)


def params(config: ModelConfig = CONFIG, seed: int = 0) -> Params:
    """Random parameters, norms included, large enough to make distributions uneven."""
    drawn = init_params(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(drawn)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    moved = [x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, moved)
