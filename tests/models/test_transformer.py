import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import cache as cache_module
from rl_sync.models import lora
from rl_sync.models.cache import KVCache, cached, empty_cache, read_span
from rl_sync.models.config import Lora, RopeScaling
from rl_sync.models.layers import frequencies, rotate, rotations
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import abstract_params, as_computed, as_computed_abstract
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import (
    Block,
    init_params,
    logits,
    param_axes,
    prefill,
)
from tests.models import tiny

TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 0, 0, 0]], np.int32)
LENGTHS = [8, 5]
_logits = jax.jit(logits, static_argnums=0)
_prefill = jax.jit(prefill, static_argnums=0)
_step = jax.jit(tiny.decode_step, static_argnums=0, static_argnames="span")
_token_logprobs = jax.jit(token_logprobs, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _cached(config, keys, values):
    return jax.vmap(functools.partial(cached, config))(keys, values)


def _reference_logits(config, params, tokens):
    """Computes logits one row, one head and one layer at a time, in float64."""
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


@pytest.mark.gate
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_written_out_formulas(tied):
    config = dataclasses.replace(tiny.CONFIG, tie_embeddings=tied, rope_base=50.0)
    params = tiny.params(config)
    scores = tiny.forward(config, params, TOKENS)
    np.testing.assert_allclose(scores[0], _reference_logits(config, params, TOKENS[0]), atol=2e-5)


def _in_corner(whole, part):
    whole = np.array(whole)
    whole[tuple(map(slice, part.shape))] = part
    return whole


@pytest.mark.samples("sliding", gate=("experts", "biased and untied"))
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_cached_decoding_gives_the_logits_of_the_full_forward_pass(name):
    config = tiny.VARIANTS[name]
    params = tiny.params(config)
    full = tiny.forward(config, params, TOKENS)
    # Prompts of 4 and 2 tokens in one padded call, then a token at a time, each at its own pace.
    hidden, filled, _ = _prefill(config, params, TOKENS[:, :4])
    scores = np.asarray(_logits(config, params, hidden))
    np.testing.assert_allclose(scores[0], full[0, :4], atol=1e-5)
    np.testing.assert_allclose(scores[1, :2], full[1, :2], atol=1e-5)
    cache = jax.tree.map(_in_corner, empty_cache(config, 2, 16), filled)
    for step in range(3):
        positions = np.array([4 + step, 2 + step])
        tokens = TOKENS[np.arange(2), positions]
        hidden, cache, _ = _step(config, params, tokens, positions, cache, span=7 + step // 2)
        scores = np.asarray(_logits(config, params, hidden))
        np.testing.assert_allclose(scores[0], full[0, 4 + step], atol=1e-5)
        np.testing.assert_allclose(scores[1], full[1, 2 + step], atol=1e-5)


@pytest.mark.nightly
@pytest.mark.samples("sliding-dot_product", gate=("plain-einsum",))
@pytest.mark.parametrize("path", ["einsum", "dot_product"])
@pytest.mark.parametrize("name", ["plain", "sliding"])
def test_every_way_to_attend_to_a_cache_agrees(name, path, monkeypatch):
    config = tiny.VARIANTS[name]
    params = tiny.params(config)
    rng = np.random.default_rng(0)
    shape = (2, config.num_layers, 3, 50, config.num_kv_heads, config.head_dim)
    keys, values = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    tokens, positions = np.array([3, 4, 5]), np.array([49, 7, 20])

    def after(config):
        def run(params, keys, values):  # Compiled anew, as the size of pages is no argument.
            cache = jax.vmap(functools.partial(cached, config))(keys, values)
            hidden, cache, _ = tiny.decode_step(config, params, tokens, positions, cache, span=50)
            return hidden, [read_span(cache, layer, 50) for layer in range(config.num_layers)]

        return jax.jit(run)(params, keys, values)

    expected = after(dataclasses.replace(config, attention=path))
    for slots in (1, 7, 16, 64):
        monkeypatch.setattr(cache_module, "_PAGE_SLOTS", slots)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after(config), expected
        )


@pytest.mark.nightly
@pytest.mark.parametrize("path", ["auto", "einsum", "dot_product"])
def test_rows_without_a_position_keep_their_cache_and_disturb_no_other(path):
    config = dataclasses.replace(tiny.VARIANTS["sliding"], attention=path)
    params = tiny.params(config)
    rng = np.random.default_rng(0)
    shape = (2, config.num_layers, 3, 50, config.num_kv_heads, config.head_dim)
    keys, values = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    cache = _cached(config, keys, values)
    tokens = np.array([3, 4, 5])
    hidden, after, _ = jax.device_get(
        _step(config, params, tokens, np.array([20, -1, 49]), cache, span=50)
    )
    expected, _, _ = jax.device_get(
        _step(config, params, tokens, np.array([20, 7, 49]), cache, span=50)
    )
    np.testing.assert_allclose(hidden[::2], expected[::2], atol=1e-6)
    assert np.isfinite(hidden).all()
    for x, y in zip(after, jax.device_get(cache), strict=True):
        np.testing.assert_array_equal(x[:, :, 1], y[:, :, 1])
        assert (x[:, :, 0] != y[:, :, 0]).any()


def test_slots_beyond_the_longest_row_are_not_read():
    config = tiny.CONFIG
    params = tiny.params(config)
    cache = KVCache(*map(np.array, empty_cache(config, 2, 500)))
    for x in cache:
        x[:, 2:] = np.nan
    hidden, _, _ = _step(config, params, np.array([3, 4]), np.array([9, 63]), cache, span=500)
    assert np.isfinite(hidden).all()


@pytest.mark.nightly
@pytest.mark.samples("experts", "sliding", gate=("stretched",))
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_padding_on_either_side_changes_nothing(name):
    config = tiny.VARIANTS[name]
    params = tiny.params(config)
    short = tiny.forward(config, params, TOKENS[:1])
    right = tiny.forward(config, params, np.pad(TOKENS[:1], ((0, 0), (0, 9))))
    np.testing.assert_allclose(right[:, :8], short, atol=1e-5)
    left = tiny.forward(
        config,
        params,
        np.pad(TOKENS[:1], ((0, 0), (5, 0))),
        positions=np.maximum(np.arange(13) - 5, 0)[None],
        segments=(np.arange(13) >= 5).astype(np.int32)[None],
    )
    np.testing.assert_allclose(left[:, 5:], short, atol=1e-5)


@pytest.mark.samples(gate=("experts", "sliding"))
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_sequences_packed_into_one_row_do_not_see_each_other(name):
    config = tiny.VARIANTS[name]
    params = tiny.params(config)
    apart = tiny.forward(config, params, TOKENS)
    packed = tiny.forward(
        config,
        params,
        np.concatenate([TOKENS[0], TOKENS[1, :5], [0, 0]])[None],
        positions=np.concatenate([np.arange(8), np.arange(5), [0, 0]])[None],
        segments=np.repeat([1, 2, 0], [8, 5, 2])[None],
    )
    np.testing.assert_allclose(packed[0, :8], apart[0], atol=1e-5)
    np.testing.assert_allclose(packed[0, 8:13], apart[1, :5], atol=1e-5)


@pytest.mark.gate
@pytest.mark.samples("experts", gate=("sliding",))
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_both_ways_to_attend_agree(name):
    config = tiny.VARIANTS[name]
    params = tiny.params(config)
    one, other = (
        tiny.forward(dataclasses.replace(config, attention=path), params, TOKENS)
        for path in ("einsum", "dot_product")
    )
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_sliding_layer_sees_its_window_and_no_more():
    config = dataclasses.replace(
        tiny.CONFIG, sliding_window=3, sliding_layers=(True, True), local_rope_base=100.0
    )
    params = tiny.params(config)
    changed = TOKENS.copy()
    changed[0, 0] = 7
    before, after = (tiny.forward(config, params, tokens)[0] for tokens in (TOKENS, changed))
    # Two layers of a window of 3 reach 4 tokens back.
    assert np.abs(before - after)[4].max() > 1e-4
    np.testing.assert_array_equal(before[5:], after[5:])


@pytest.mark.gate
def test_each_token_goes_through_its_own_experts_alone():
    config = tiny.VARIANTS["experts"]
    params = tiny.params(config)
    together = tiny.forward(config, params, TOKENS)
    for row in range(2):
        alone = tiny.forward(config, params, TOKENS[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_llama_scaling_stretches_low_frequencies_only():
    plain = frequencies(8, 10_000.0, None)
    np.testing.assert_allclose(plain, [1, 0.1, 0.01, 0.001])
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_length=320)
    # Turns within 320 tokens: 50.9, 5.09, 0.509, 0.0509; kept above 4, divided by 8 below 1.
    np.testing.assert_allclose(frequencies(8, 10_000.0, scaling), [1, 0.1, 0.00125, 0.000125])
    between = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_length=128)
    turns = 128 * 0.1 / (2 * np.pi)
    kept = (turns - 1) / 3
    expected = kept * 0.1 + (1 - kept) * 0.1 / 8
    np.testing.assert_allclose(frequencies(8, 10_000.0, between)[1], expected)
    linear = RopeScaling("linear", 8.0)
    np.testing.assert_allclose(frequencies(8, 10_000.0, linear), plain / 8)


ADAPTED = dataclasses.replace(tiny.CONFIG, lora=Lora(2, 4.0))


@pytest.fixture(scope="module")
def fresh():
    """Makes the real initialization, which takes long to compile, with adapters."""
    return jax.jit(init_params, static_argnums=0)(ADAPTED, jax.random.key(0))


@pytest.mark.gate
def test_a_fresh_adapter_changes_nothing_and_a_trained_one_does(fresh):
    scores = tiny.forward(ADAPTED, fresh, TOKENS)
    _, base = lora.split(fresh)
    assert jax.tree.structure(base) == jax.tree.structure(tiny.params())
    np.testing.assert_array_equal(scores, tiny.forward(tiny.CONFIG, base, TOKENS))
    moved = tiny.params(ADAPTED)
    assert np.abs(tiny.forward(ADAPTED, moved, TOKENS) - scores).max() > 0.1


@pytest.mark.gate
def test_token_logprobs_stand_at_their_own_token():
    params = tiny.params()
    logprobs, entropy = jax.device_get(_token_logprobs(tiny.CONFIG, params, TOKENS, 0.7))
    scores = np.asarray(tiny.forward(tiny.CONFIG, params, TOKENS)) / 0.7
    scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    assert np.all(logprobs[:, 0] == 0)
    assert np.all(entropy[:, 0] == 0)
    for row, length in enumerate(LENGTHS):
        for t in range(1, length):
            before = scores[row, t - 1]
            np.testing.assert_allclose(logprobs[row, t], before[TOKENS[row, t]], atol=1e-5)
            np.testing.assert_allclose(entropy[row, t], -(np.exp(before) * before).sum(), atol=1e-5)


@pytest.mark.nightly
@pytest.mark.samples("3", gate=("6",))
@pytest.mark.parametrize("positions", [1, 3, 6])
def test_logprobs_by_chunks_are_those_of_the_whole(positions):
    params = tiny.params()

    def loss(params, logits_bytes):
        logprobs, entropy = token_logprobs(
            tiny.CONFIG, params, TOKENS, 0.7, logits_bytes=logits_bytes
        )
        return (logprobs * np.arange(8)).sum() + entropy.sum(), (logprobs, entropy)

    run = jax.value_and_grad(loss, has_aux=True)
    run = jax.jit(run, static_argnums=1)
    size = 4 * 2 * 11 * positions
    whole, parts = run(params, 1 << 20), run(params, size)
    with compiling_for("gpu"):  # By blocks of the vocabulary there, also on one device.
        blocks = run(params, size)
    for found in (parts, blocks):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), whole, found
        )


@pytest.mark.nightly
@pytest.mark.samples("gpu")
@pytest.mark.parametrize("target", ["gpu", "tpu"])
def test_blocks_of_one_device_give_the_values_and_gradients_of_whole_logits(target):
    config = dataclasses.replace(tiny.CONFIG, vocab_size=700)
    params = tiny.params(config)

    def loss(params, logits_bytes):
        found = token_logprobs(config, params, TOKENS, 0.7, logits_bytes=logits_bytes)
        return (found[0] * np.arange(8)).sum() + found[1].sum()

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    whole = run(params, 1 << 20)
    with compiling_for(target):
        text = run.lower(params, 1).as_text()
        blocks = run(params, 1)
    assert not {"2x7x700xf32", "14x700xf32"} & set(re.findall(r"tensor<([^>]*)>", text))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), whole, blocks)


@pytest.mark.gate
def test_logprobs_by_chunks_never_hold_all_logits():
    config = dataclasses.replace(tiny.CONFIG, vocab_size=5000, max_length=128)
    shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))

    def biggest(logits_bytes):
        def loss(params, tokens):
            return token_logprobs(config, params, tokens, logits_bytes=logits_bytes)[0].sum()

        tokens = jax.ShapeDtypeStruct((4, 128), jnp.int32)
        return jax.jit(jax.grad(loss)).lower(shapes, tokens).compile().memory_analysis()

    assert biggest(1 << 17).temp_size_in_bytes < 4 * 127 * 5000 * 4
    assert biggest(1 << 30).temp_size_in_bytes > 4 * 127 * 5000 * 4


@functools.partial(jax.jit, static_argnums=1)
def _value_and_gradient(params, remat):
    config = dataclasses.replace(tiny.CONFIG, remat=remat)
    return jax.value_and_grad(lambda p: token_logprobs(config, p, TOKENS)[0].sum())(params)


@pytest.mark.nightly
@pytest.mark.samples("dots")
@pytest.mark.parametrize("policy", ["full", "attention", "dots", "dots_no_batch"])
def test_rematerialization_changes_neither_the_value_nor_the_gradient(policy):
    kept, again = (_value_and_gradient(tiny.params(), remat) for remat in ("none", policy))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), kept, again)


def _attending_kernels(jaxpr):
    """Counts the kernels of forward passes of attention in a program, each loop once."""
    count = 0
    for eqn in jaxpr.eqns:
        names = (eqn.params.get("name"), eqn.params.get("name_and_src_info"))
        count += "pallas" in eqn.primitive.name and "splash_mqa_fwd" in str(names)
        inner = [
            x for value in eqn.params.values() for x in jax.tree.leaves(value, is_leaf=_is_program)
        ]
        count += sum(_attending_kernels(getattr(x, "jaxpr", x)) for x in inner if _is_program(x))
    return count


def _is_program(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


@pytest.mark.gate
@pytest.mark.parametrize(("policy", "count"), [("none", 1), ("full", 2), ("attention", 1)])
def test_a_backward_pass_computes_attention_again_unless_its_results_are_kept(policy, count):
    config = dataclasses.replace(
        tiny.CONFIG, num_layers=6, max_length=256, dtype="bfloat16", remat=policy
    )
    tokens = jax.ShapeDtypeStruct((1, 256), jnp.int32)
    params = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))

    def loss(params, tokens):
        return token_logprobs(config, params, tokens)[0].sum()

    with compiling_for("tpu"):
        traced = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    assert _attending_kernels(traced.jaxpr) == count


@pytest.mark.gate
def test_bfloat16_blocks_still_give_float32_logprobs():
    config = dataclasses.replace(tiny.CONFIG, dtype="bfloat16")
    params = tiny.params()
    rough, _ = jax.device_get(_token_logprobs(config, params, TOKENS))
    exact, _ = jax.device_get(_token_logprobs(tiny.CONFIG, params, TOKENS))
    assert rough.dtype == jnp.float32
    assert 0 < np.abs(rough - exact)[0].max() < 0.5


@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_parameter_axis_has_a_name(name):
    config = tiny.VARIANTS[name]
    params = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    axes = param_axes(config)
    experts = ("experts",) if config.experts else ()
    expected = jax.sharding.PartitionSpec("layers", *experts, "mlp", "embed")
    assert axes["blocks"]["mlp"]["down"] == expected
    is_spec = {"is_leaf": lambda x: isinstance(x, jax.sharding.PartitionSpec)}
    jax.tree.map(
        lambda spec, x: len(spec) == x.ndim or pytest.fail(f"{spec}"), axes, params, **is_spec
    )


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_trace_leaves_the_block_class_alone(remat):
    # Linen takes fields out of a class while it derives another; threads trace at the same time.
    fields, derived = Block.__dataclass_fields__, Block.__subclasses__()
    untraced = _value_and_gradient.__wrapped__
    jax.eval_shape(lambda params: untraced(params, remat), tiny.params())
    assert Block.__dataclass_fields__ is fields
    assert Block.__subclasses__() == derived


def test_rotation_turns_by_position_and_keeps_relative_angles():
    config = dataclasses.replace(tiny.CONFIG, head_dim=2)
    q, k = np.array([1.0, 0.0]), np.array([0.0, 1.0])

    @jax.jit
    def turned(positions):
        at, _ = rotations(config, positions)
        return [rotate(jnp.broadcast_to(x, (1, 4, 2)), at)[0] for x in (q, k)]

    turned_q, turned_k = jax.device_get(turned(np.array([[0, 1, 5, 6]])))
    np.testing.assert_allclose(turned_q[1], [np.cos(1), np.sin(1)], atol=1e-6)
    np.testing.assert_allclose(turned_q[1] @ turned_k[0], turned_q[3] @ turned_k[2], atol=1e-6)


@pytest.mark.gate
def test_a_fresh_mlp_is_not_zero(fresh):
    mlp = lora.split(fresh)[1]["blocks"]["mlp"]
    assert all(np.all(np.std(kernel, axis=(-2, -1)) > 0) for kernel in jax.tree.leaves(mlp))


@pytest.mark.nightly
@pytest.mark.samples("plain", "sliding", gate=("experts",))
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_parameters_in_the_dtype_of_the_computation_give_the_same_bits(name):
    config = dataclasses.replace(tiny.VARIANTS[name], dtype="bfloat16")
    params = tiny.params(config)
    held = as_computed(config, params)
    dtypes = {str(x.dtype) for x in jax.tree.leaves(held)}
    assert dtypes == {"bfloat16", "float32"}, "scales of norms stay"
    one, other = (_token_logprobs(config, tree, TOKENS)[0] for tree in (params, held))
    np.testing.assert_array_equal(one, other)
    like = as_computed_abstract(config, abstract_params(config, Layout.single()))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), held) == jax.tree.map(
        lambda x: (x.shape, x.dtype), like
    )
