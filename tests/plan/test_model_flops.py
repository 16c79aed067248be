"""Counts of operations are those of the matrix products that a model really traces."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.transformer import hidden_states, param_shapes
from rl_sync.plan.roofline import block_flops, logit_flops

MODEL = ModelConfig(
    vocab_size=96,
    embed_dim=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    mlp_dim=48,
    max_length=40,
)


def traced(function, *args) -> float:
    """The operations of all matrix products of a function."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2.0 * inner * math.prod(equation.outvars[0].aval.shape)
        for inside in jaxprs_in_params(equation.params):
            total += times * _count(inside)
    return total


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        dataclasses.replace(MODEL, num_kv_heads=1, num_layers=6),
        dataclasses.replace(MODEL, num_kv_heads=4, mlp_dim=64, tie_embeddings=False),
    ],
)
def test_they_are_those_of_the_traced_products(model):
    tokens = jnp.zeros((2, 40), jnp.int32)
    params = param_shapes(model)
    blocks = traced(lambda p: hidden_states(model, p, tokens), params)
    assert block_flops(model, context=40) * tokens.size == blocks
    everything = traced(lambda p: token_logprobs(model, p, tokens), params)
    assert logit_flops(model) * 2 * 39 == everything - blocks


def test_windows_bound_the_context():
    slides = dataclasses.replace(MODEL, sliding_window=8, sliding_layers=(True, False, True))
    heads = MODEL.num_heads * MODEL.head_dim
    less = 4 * heads * 2 * (40 - 8)
    assert block_flops(MODEL, 40) - block_flops(slides, 40) == less
