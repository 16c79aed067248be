"""Images in rows: a token's hidden state is that of its own sequence, however rows are laid out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import blocks, lora, quantization
from rl_sync.models.balance import can_balance
from rl_sync.models.blocks import Tokens, reached, visible
from rl_sync.models.config import Lora
from rl_sync.models.kernels.flash import AttentionCall, kernel_for, require_fit
from rl_sync.models.placement import abstract_params, undivided
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.transformer import (
    hidden_states,
    init_params,
    param_axes,
    param_shapes,
    prefill,
)
from rl_sync.models.vision.projector import Seen, tile_ends
from rl_sync.models.vision.tower import image_features
from rl_sync.models.vision.vision_config import Vision
from rl_sync.plan.memory.model_memory import tree_bytes
from tests.models import meshes, tiny

M, TILES = 16, 4
VISION = Vision(
    image_size=16,
    patch_size=4,
    embed_dim=12,
    num_layers=2,
    num_heads=2,
    mlp_dim=20,
    tile_tokens=M,
    token_id=10,
)
MODEL = dataclasses.replace(
    tiny.VARIANTS["sliding"], sliding_window=30, vision=VISION, attention="einsum"
)
SHUFFLED = dataclasses.replace(
    VISION, patch_size=2, connector="shuffled", both_ways=False, num_layers=6
)
PIXELS = np.random.default_rng(3).integers(0, 256, (TILES, 16, 16, 3)).astype(np.uint8)
_features = jax.jit(image_features, static_argnums=0)


def _sequence(*parts, seed=0):
    """Makes tokens and places of their features: text of some lengths, and tiles `(number,)`."""
    rng, tokens, at = np.random.default_rng(seed), [], []
    for part in parts:
        if isinstance(part, int):
            tokens += rng.integers(0, 10, part).tolist()
            at += [-1] * part
        else:
            tokens += [10] * M
            at += [part[0] * M + offset for offset in range(M)]
    return np.array(tokens, np.int32), np.array(at, np.int32)


# Of 48 tokens each. Tiles lie across the borders of blocks, and one is used by both.
FIRST = _sequence(5, (0,), 3, (1,), 8, seed=1)
SECOND = _sequence((1,), 20, 0, 12, seed=2)
PLAIN = _sequence(48, seed=3)
# A prompt of 30 tokens, and two completions of it.
PROMPT = _sequence(9, (3,), 5, seed=4)
ENDS = _sequence(33, seed=5), _sequence(33, seed=6)


def _joined(*sequences):
    return tuple(np.concatenate(x) for x in zip(*sequences, strict=True))


def _layout(kind):
    """Returns rows in a layout, and for each sequence in them its own row and its places there."""
    if kind == "padded":
        rows = [FIRST, SECOND, PLAIN, _sequence(48, seed=7)]
        places = [(row, number, np.arange(48)) for number, row in enumerate(rows)]
        padding = _sequence(8, seed=8)
        return [_joined(row, padding) for row in rows], {}, places
    if kind == "packed":
        rows = [_joined(FIRST, SECOND), _joined(PLAIN, FIRST)] * 2
        row = np.repeat([4, 7], 48)
        given = dict(positions=np.tile(np.arange(48), 2), segments=row)
        places = [(FIRST, 0, np.arange(48)), (SECOND, 0, np.arange(48, 96))]
        places += [(PLAIN, 1, np.arange(48)), (FIRST, 3, np.arange(48, 96))]
    else:
        rows = [_joined(PROMPT, *ENDS)] * 4
        given = dict(
            positions=np.array([*range(63), *range(30, 63)]),
            segments=np.repeat([-1, 1, 2], [30, 33, 33]),
            prompts=np.zeros(96, int),
        )
        places = [
            (_joined(PROMPT, ENDS[0]), 1, np.arange(63)),
            (_joined(PROMPT, ENDS[1]), 2, np.array([*range(30), *range(63, 96)])),
        ]
    return rows, {name: np.tile(x, (4, 1)).astype(np.int32) for name, x in given.items()}, places


def _states(config, params, rows, pixels=PIXELS, **given):
    """Computes hidden states of rows."""
    tokens, at = (np.stack(x) for x in zip(*rows, strict=True))

    def run(params, tokens, at):
        seen = Seen(image_features(config, params, pixels), at)
        return hidden_states(config, params, tokens, images=seen, **given)

    return np.asarray(jax.jit(run)(params, tokens, at))


def _learned(config, params, rows, layout=None, **given):
    """Computes hidden states of rows, and gradients of all parameters for fixed weights."""
    tokens, at = (np.stack(x) for x in zip(*rows, strict=True))
    weights = np.random.default_rng(2).standard_normal((*tokens.shape, config.embed_dim))

    def loss(params, tokens, at, tiles):
        seen = Seen(image_features(config, params, tiles), at)
        states = hidden_states(config, params, tokens, images=seen, **given)
        return (states * weights).sum(), states

    with using(layout or meshes.layout()):
        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, states), grads = run(params, tokens, at, PIXELS)
    return np.asarray(states), grads


@functools.cache
def _learned_by_one_device(kind):
    rows, given, _ = _layout(kind)
    return _learned(MODEL, tiny.params(MODEL), rows, **given)


def _assert_alike(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * max(np.abs(y).max(), 1e-3))


@pytest.mark.nightly
@pytest.mark.samples("packed", gate=("shared",))
@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
def test_images_are_seen_as_in_a_row_of_their_own(kind):
    rows, given, places = _layout(kind)
    params = tiny.params(MODEL)
    found = _states(MODEL, params, rows, **given)
    for sequence, row, where in places:
        alone = _states(MODEL, params, [sequence])
        np.testing.assert_allclose(found[row, where], alone[0], atol=2e-5)


@pytest.mark.gate
def test_an_image_may_stand_twice_in_a_sequence():
    params, pixels = tiny.params(MODEL), PIXELS.copy()
    pixels[3] = pixels[1]
    once, twice = (_sequence(3, (1,), 2, (other,), 11) for other in (3, 1))
    expected = _states(MODEL, params, [once], pixels)
    np.testing.assert_allclose(_states(MODEL, params, [twice], pixels), expected, atol=2e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("vision", [VISION, SHUFFLED], ids=["pooled", "shuffled"])
def test_only_tokens_of_a_tile_look_ahead(vision):
    config = dataclasses.replace(MODEL, vision=vision)
    params = tiny.params(config)
    features = np.asarray(_features(config, params, PIXELS))
    tokens, at = (x[None] for x in FIRST)
    states_of = jax.jit(hidden_states, static_argnums=0)

    def moved(number):
        """Returns the tokens whose states change with the features of one token."""
        changed = features.copy()
        changed.reshape(TILES * M, -1)[at[0, number]] += 1
        states = [
            np.asarray(states_of(config, params, tokens, images=Seen(x, at)))
            for x in (features, changed)
        ]
        return np.flatnonzero(np.abs(states[0] - states[1]).max(-1)[0] > 1e-6)

    first = 5 if vision.both_ways else 5 + 7
    np.testing.assert_array_equal(moved(5 + 7), np.arange(first, 48))


@pytest.mark.nightly
@pytest.mark.samples(gate=("shared-mesh1",))
@pytest.mark.parametrize(
    "mesh",
    [{"context": 4}, {"context": 2, "tensor": 2}, {"data": 2, "fsdp": 2}, {"tensor": 4}],
)
@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
def test_devices_that_share_rows_with_images_compute_what_one_does(kind, mesh, monkeypatch):
    monkeypatch.setattr(blocks, "_SCORES_BYTES", 16_000)
    rows, given, _ = _layout(kind)
    layout = meshes.layout(**mesh).grouped(MODEL.num_kv_heads)
    by_blocks = dataclasses.replace(MODEL, attention="blocks", remat="full")
    found = _learned(by_blocks, tiny.params(MODEL), rows, layout, **given)
    _assert_alike(found, _learned_by_one_device(kind))


@pytest.mark.nightly
def test_devices_that_share_prompts_with_images_prefill_what_one_does(monkeypatch):
    monkeypatch.setattr(blocks, "_SCORES_BYTES", 16_000)
    tokens, at = (np.stack([x, x]) for x in FIRST)
    params = tiny.params(MODEL)

    def filled(params, tokens, at, tiles):
        seen = Seen(image_features(MODEL, params, tiles), at)
        hidden, cache, _ = prefill(MODEL, params, tokens, images=seen)
        return hidden, cache

    results, sharing = [], meshes.layout(context=4)
    with using(sharing):
        assert can_balance(tokens.shape)
    for layout in (meshes.layout(), sharing):
        with using(layout):
            results.append(jax.jit(filled)(params, tokens, at, PIXELS))
    _assert_alike(results[1], results[0])


def test_blocks_of_queries_reach_to_the_ends_of_their_tiles():
    tokens = Tokens(np.arange(64)[None], None, None, np.full((1, 64), -1))
    at = np.array([[-1] * 20 + list(range(M)) + [-1] * 28])
    ends = np.asarray(tile_ends(at, np.arange(64)[None], M))
    assert set(ends[0, 20:36]) == {35}
    assert int(reached(np.arange(16, 24), None, 8, ends[:, 16:24])[1]) == 5
    assert int(reached(np.arange(8, 16), None, 8, ends[:, 8:16])[1]) == 2
    mask = np.asarray(visible(tokens._replace(ends=ends), tokens._replace(ends=ends), 10))[0]
    assert mask[20, 35]
    assert not mask[20, 36]
    assert not mask[19, 20]
    assert not mask[35, 20]  # Before the window.
    # Of a row that ends within a tile, the tile ends there.
    assert int(tile_ends(np.array([[-1, 0, 1, 2]]), np.arange(4)[None], M)[0, 1]) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("most_bytes", [80_000, 20_000])
def test_the_tower_attends_in_parts_if_scores_are_large(most_bytes, monkeypatch):
    config = dataclasses.replace(MODEL, vision=SHUFFLED)
    params = tiny.params(config)

    def learned():
        def run(params):
            features = image_features(config, params, PIXELS)
            return (features**2).sum(), features

        return jax.jit(jax.value_and_grad(run, has_aux=True))(params)

    expected = learned()
    monkeypatch.setattr("rl_sync.models.vision.tower._SCORES_BYTES", most_bytes)
    _assert_alike(learned(), expected)


def test_kernels_that_do_not_know_the_mask_are_not_used():
    config = dataclasses.replace(MODEL, attention="auto", dtype="bfloat16")
    plain = AttentionCall.of(config, 512, packed=False, shared=False)
    with compiling_for("tpu"):
        assert kernel_for(config, plain) == "splash"
        assert kernel_for(config, plain._replace(both_ways=True)) is None
    named = dataclasses.replace(config, attention="splash")
    with pytest.raises(ValueError, match=r"attention=splash cannot attend both ways within images"):
        require_fit(named, plain._replace(both_ways=True))


@pytest.mark.nightly
def test_vision_leaves_the_rest_of_a_model_as_it_is():
    plain, key = dataclasses.replace(MODEL, vision=None), jax.random.key(0)
    init = jax.jit(init_params, static_argnums=0)
    params = init(MODEL, key)
    assert jax.tree.structure(param_axes(MODEL)) == jax.tree.structure(params)
    rest = {name: value for name, value in params.items() if name != "vision"}
    jax.tree.map(np.testing.assert_array_equal, rest, init(plain, key))
    tokens = FIRST[0][None]
    for run in (hidden_states, lambda *given: prefill(*given).hidden):
        run = jax.jit(run, static_argnums=0)
        np.testing.assert_array_equal(run(MODEL, params, tokens), run(plain, rest, tokens))
    seen = Seen(jnp.zeros((TILES, M, 12)), FIRST[1][None])
    with pytest.raises(ValueError, match=r"has no vision, so it takes no images"):
        hidden_states(plain, rest, tokens, images=seen)


@pytest.mark.gate
def test_adapters_and_quantization_leave_vision_alone():
    config = dataclasses.replace(MODEL, lora=Lora(2, 4.0))
    params = tiny.params(config)
    assert tree_bytes(param_shapes(config)) == sum(x.nbytes for x in jax.tree.leaves(params))
    adapters, base = lora.split(params)
    assert "vision" not in adapters
    merged = jax.jit(lora.merge, static_argnums=0)(config, params)
    jax.tree.map(np.testing.assert_array_equal, merged["vision"], base["vision"])
    int8 = dataclasses.replace(MODEL, quantization="int8")
    held = jax.jit(quantization.quantized, static_argnums=0)(int8, merged)
    assert jax.tree.structure(held) == jax.tree.structure(param_shapes(int8))
    assert {x.dtype.name for x in jax.tree.leaves(held["vision"])} == {"float32"}


def test_towers_are_sharded_like_blocks():
    layout = meshes.layout(fsdp=2, tensor=2)
    tower = abstract_params(MODEL, layout)["vision"]["tower"]["blocks"]
    for name in ("qkv", "out"):
        kernel = tower["attention"][name]
        assert np.prod(kernel.sharding.shard_shape(kernel.shape)) * 4 == np.prod(kernel.shape)
    up = tower["mlp"]["up"]
    assert np.prod(up.sharding.shard_shape(up.shape)) * 4 == np.prod(up.shape)
    assert not [line for line in undivided(MODEL, layout) if line.startswith("vision")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, r"model\.vision\.embed_dim=12 must be a multiple of .*num_heads=5"),
        ({"patch_size": 5}, r"image_size=16 must be a multiple of model\.vision\.patch_size=5"),
        ({"tile_tokens": 9}, r"tile_tokens=9 must be the square of a divisor of the 4 patches"),
        ({"connector": "glued"}, r"model\.vision\.connector='glued' is not one of pooled, shuff"),
        ({"mlp_dim": 0}, r"model\.vision\.mlp_dim=0 must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(VISION, **changes)
