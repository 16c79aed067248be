"""A model that is small enough for tests, and moved off its neutral initial values."""

import dataclasses
import functools

import jax
import numpy as np
from jaxtyping import Array

from rl_sync.models import transformer
from rl_sync.models.config import Experts, ModelConfig, RopeScaling
from rl_sync.models.transformer import hidden_states, init_params, logits
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

VARIANTS = {
    "plain": CONFIG,
    "biased and untied": dataclasses.replace(CONFIG, qkv_bias=True, tie_embeddings=False),
    "stretched": dataclasses.replace(
        CONFIG, rope_scaling=RopeScaling("llama3", 8.0, original_max_length=16), qk_norm=True
    ),
    "experts": dataclasses.replace(CONFIG, experts=Experts(5, 2, 12), qk_norm=True),
    "sliding": dataclasses.replace(
        CONFIG,
        activation="gelu_tanh",
        norm_offset=1.0,
        post_norms=True,
        scale_embedding=True,
        query_scale=0.3,
        sliding_window=3,
        sliding_layers=(True, False),
        local_rope_base=100.0,
    ),
}


@functools.partial(jax.jit, static_argnums=0)
def forward(config: ModelConfig, params: Params, tokens: Array, **rows: Array) -> Array:
    """Computes the logits of a full pass."""
    return logits(config, params, hidden_states(config, params, tokens, **rows))


def params(config: ModelConfig = CONFIG, seed: int = 0, spread: float = 0.4) -> Params:
    """Draws random parameters, norms included, by default so large that distributions are uneven.

    numpy draws them: compiling the real initialization takes longer than most tests.
    """
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))

    def draw(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> Array:
        middle = 1.0 - config.norm_offset if path[-1].key == "scale" else 0.0
        drawn = middle + spread * rng.standard_normal(leaf.shape)
        return jax.device_put(drawn.astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, shapes)


def decode_step(config, params, tokens, positions, cache, span):
    """Feeds one token of each row."""
    fed = transformer.decode_step(config, params, tokens[:, None], positions[:, None], cache, span)
    routes = None if fed.routes is None else fed.routes[:, 0]
    return fed._replace(hidden=fed.hidden[:, 0], routes=routes)
