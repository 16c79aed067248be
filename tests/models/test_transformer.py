import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.transformer import (
    apply_model,
    empty_cache,
    init_params,
    param_axes,
    rotate,
    rotation,
    token_logprobs,
)
from tests.models import tiny

TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 0, 0, 0]], np.int32)
LENGTHS = [8, 5]


def _reference_logits(config, params, tokens):
    """One row, one head and one layer at a time, in float64."""
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, scale):
        return scale * x / np.sqrt((x**2).mean() + config.norm_eps)

    def turn(x, position):
        half = config.head_dim // 2
        angles = position * config.rope_base ** (-2 * np.arange(half) / config.head_dim)
        pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag])

    stream = [weights["embedding"][token] for token in tokens]
    for layer in range(config.num_layers):
        block = jax.tree.map(lambda x, at=layer: x[at], weights["blocks"])
        normed = [norm(x, block["attention_norm"]["scale"]) for x in stream]
        for head in range(config.num_heads):
            k, n = divmod(head, config.heads_per_kv)
            qkv = block["attention"]["qkv"][:, k]
            queries = [turn(x @ qkv[:, n], t) for t, x in enumerate(normed)]
            keys = [turn(x @ qkv[:, -2], t) for t, x in enumerate(normed)]
            values = [x @ qkv[:, -1] for x in normed]
            for t in range(len(tokens)):
                scores = np.array([queries[t] @ keys[s] for s in range(t + 1)])
                scores = np.exp(scores / np.sqrt(config.head_dim))
                mixed = sum(w * v for w, v in zip(scores / scores.sum(), values, strict=False))
                stream[t] = stream[t] + mixed @ block["attention"]["out"][k, n]
        for t, x in enumerate(stream):
            gate, up = np.einsum(
                "D,DEF->EF", norm(x, block["mlp_norm"]["scale"]), block["mlp"]["gate_up"]
            )
            stream[t] = x + (gate / (1 + np.exp(-gate)) * up) @ block["mlp"]["down"]
    out = weights["embedding"] if config.tie_embeddings else weights["unembedding"]
    return np.stack([norm(x, weights["final_norm"]["scale"]) @ out.T for x in stream])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_written_out_formulas(tied):
    config = dataclasses.replace(tiny.CONFIG, tie_embeddings=tied, rope_base=50.0)
    params = tiny.params(config)
    logits, _ = apply_model(config, params, TOKENS)
    np.testing.assert_allclose(logits[0], _reference_logits(config, params, TOKENS[0]), atol=2e-5)


def test_cached_decoding_gives_the_logits_of_the_full_forward_pass():
    params = tiny.params()
    full, _ = apply_model(tiny.CONFIG, params, TOKENS)
    cache = empty_cache(tiny.CONFIG, 2, 10)
    # Prompts of 4 and 2 tokens in one padded call, then a token at a time, each at its own pace.
    logits, cache = apply_model(tiny.CONFIG, params, TOKENS[:, :4], cache=cache)
    np.testing.assert_allclose(logits[0], full[0, :4], atol=1e-5)
    np.testing.assert_allclose(logits[1, :2], full[1, :2], atol=1e-5)
    for step in range(3):
        positions = np.array([[4 + step], [2 + step]])
        tokens = np.take_along_axis(TOKENS, positions, axis=1)
        logits, cache = apply_model(tiny.CONFIG, params, tokens, positions, cache)
        np.testing.assert_allclose(logits[0, 0], full[0, 4 + step], atol=1e-5)
        np.testing.assert_allclose(logits[1, 0], full[1, 2 + step], atol=1e-5)


def test_token_logprobs_stand_at_their_own_token():
    params = tiny.params()
    logprobs, entropy = token_logprobs(tiny.CONFIG, params, TOKENS, temperature=0.7)
    logits, _ = apply_model(tiny.CONFIG, params, TOKENS)
    scores = np.asarray(jax.nn.log_softmax(logits / 0.7))
    assert np.all(logprobs[:, 0] == 0)
    assert np.all(entropy[:, 0] == 0)
    for row, length in enumerate(LENGTHS):
        for t in range(1, length):
            before = scores[row, t - 1]
            np.testing.assert_allclose(logprobs[row, t], before[TOKENS[row, t]], atol=1e-5)
            np.testing.assert_allclose(entropy[row, t], -(np.exp(before) * before).sum(), atol=1e-5)


def test_padding_changes_nothing():
    params = tiny.params()
    short, _ = token_logprobs(tiny.CONFIG, params, TOKENS[1:, :5])
    padded, _ = token_logprobs(tiny.CONFIG, params, np.pad(TOKENS[1:, :5], ((0, 0), (0, 9))))
    np.testing.assert_allclose(padded[:, :5], short, atol=1e-6)


def test_rematerialization_changes_neither_the_value_nor_the_gradient():
    params = tiny.params()

    def loss(params, remat):
        config = dataclasses.replace(tiny.CONFIG, remat=remat)
        return token_logprobs(config, params, TOKENS)[0].sum()

    kept, again = (jax.value_and_grad(loss)(params, remat) for remat in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), kept, again)


def test_bfloat16_blocks_still_give_float32_logprobs():
    config = dataclasses.replace(tiny.CONFIG, dtype="bfloat16")
    params = tiny.params()
    rough, _ = token_logprobs(config, params, TOKENS)
    exact, _ = token_logprobs(tiny.CONFIG, params, TOKENS)
    assert rough.dtype == jnp.float32
    assert 0 < np.abs(rough - exact)[0].max() < 0.5


def test_every_parameter_axis_has_a_name():
    params = init_params(tiny.CONFIG, jax.random.key(0))
    axes = param_axes(tiny.CONFIG)
    assert axes["blocks"]["mlp"]["down"] == jax.sharding.PartitionSpec("layers", "mlp", "embed")
    is_spec = {"is_leaf": lambda x: isinstance(x, jax.sharding.PartitionSpec)}
    jax.tree.map(
        lambda spec, x: len(spec) == x.ndim or pytest.fail(f"{spec}"), axes, params, **is_spec
    )


def test_rotation_turns_by_position_and_keeps_relative_angles():
    config = dataclasses.replace(tiny.CONFIG, head_dim=2)
    q, k = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    at = rotation(config, jnp.array([[0, 1, 5, 6]]))
    turned_q = rotate(jnp.broadcast_to(q, (1, 4, 2)), at)[0]
    turned_k = rotate(jnp.broadcast_to(k, (1, 4, 2)), at)[0]
    np.testing.assert_allclose(turned_q[1], [np.cos(1), np.sin(1)], atol=1e-6)
    np.testing.assert_allclose(turned_q[1] @ turned_k[0], turned_q[3] @ turned_k[2], atol=1e-6)
