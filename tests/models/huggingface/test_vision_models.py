"""Models with vision: the numbers of torch, and the way through files and back."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_sync.models.cache import empty_cache
from rl_sync.models.huggingface.architectures import config_values, model_config
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.transformer import hidden_states, logits, prefill
from rl_sync.models.vision.projector import Seen
from rl_sync.models.vision.tower import image_features
from tests.models import tiny
from tests.models.huggingface import golden
from tests.models.huggingface.test_reading import stored


@pytest.fixture(scope="module", params=golden.WITH_VISION)
def model(request):
    directory = golden.ROOT / request.param
    return directory, *golden.load(directory, vision=True), golden.expected(request.param)


def _real(expected):
    return np.arange(expected["tokens"].shape[1]) < expected["lengths"][:, None]


def _scores(config, params, expected):
    seen = Seen(image_features(config, params, expected["tiles"]), expected["at"])
    return logits(config, params, hidden_states(config, params, expected["tokens"], images=seen))


def _loss(config, params, expected):
    tokens = expected["tokens"]
    learned = _real(expected)[:, 1:] & (expected["at"][:, 1:] < 0)
    scores = _scores(config, params, expected)
    logprobs = jnp.take_along_axis(jax.nn.log_softmax(scores[:, :-1]), tokens[:, 1:, None], -1)
    return -jnp.where(learned, logprobs[..., 0], 0).sum() / learned.sum(), scores


@pytest.mark.nightly
@pytest.mark.samples(gate=("gemma3_vision",))
def test_logits_and_gradients_of_every_parameter_are_those_of_transformers(model):
    directory, config, params, expected = model
    slopes = load_params(directory / "gradients", config, golden.abstract(config))
    graded = jax.jit(jax.value_and_grad(lambda p: _loss(config, p, expected), has_aux=True))
    (loss, scores), found = graded(params)
    scores = np.where(_real(expected)[..., None], scores, 0)
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)
    assert {"tower", "projector"} == set(found["vision"])
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(slopes), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max() + 1e-7)


@pytest.mark.nightly
def test_greedy_decoding_after_images_continues_as_transformers_does(model):
    _, config, params, expected = model
    tokens, lengths = expected["tokens"], expected["lengths"]
    count = expected["greedy"].shape[1]
    seen = Seen(image_features(config, params, expected["tiles"]), expected["at"])
    hidden, filled, _ = jax.jit(prefill, static_argnums=0)(config, params, tokens, images=seen)
    width = tokens.shape[1] + count
    cache = jax.tree.map(
        lambda whole, part: whole.at[tuple(map(slice, part.shape))].set(part),
        empty_cache(config, len(tokens), width),
        filled,
    )
    step = jax.jit(tiny.decode_step, static_argnums=(0, 5))
    last = hidden[np.arange(len(tokens)), lengths - 1]
    for number in range(count):
        drawn = logits(config, params, last).argmax(axis=-1)
        np.testing.assert_array_equal(drawn, expected["greedy"][:, number])
        last, cache, _ = step(config, params, drawn, lengths + number, cache, width)


@pytest.mark.gate
def test_images_of_gemma_are_seen_both_ways():
    directory = golden.ROOT / "gemma3_vision"
    config, params = golden.load(directory, vision=True)
    expected = golden.expected("gemma3_vision")
    vision = dataclasses.replace(config.vision, both_ways=False)
    scores = _scores(dataclasses.replace(config, vision=vision), params, expected)
    apart = np.abs(np.where(_real(expected)[..., None], scores, 0) - expected["logits"]).max(-1)
    assert apart[0].max() > 0.1
    assert apart[1].max() < 1e-5  # The row without images.


@pytest.mark.gate
def test_a_language_model_leaves_its_vision_alone_and_its_export_keeps_it(model, tmp_path):
    directory, seeing, both, _ = model
    config, params = golden.load(directory)
    assert config == dataclasses.replace(seeing, vision=None)
    assert "vision" not in params
    text = {name: value for name, value in both.items() if name != "vision"}
    jax.tree.map(np.testing.assert_array_equal, params, text)
    params = {**params, "embedding": params["embedding"] + 1}
    write_checkpoint(tmp_path / "out", config, params, FrameSources(source=directory))
    again, found = golden.load(tmp_path / "out", vision=True)
    assert again == seeing
    jax.tree.map(np.testing.assert_array_equal, found, {**both, **params})
    before, after = stored(directory), stored(tmp_path / "out")
    assert before.keys() == after.keys()
    write_checkpoint(
        tmp_path / "half", config, params, FrameSources(source=directory, dtype="bfloat16")
    )
    assert {x.dtype.name for x in stored(tmp_path / "half").values()} == {"bfloat16"}


def test_export_with_vision_gives_the_same_bytes(model, tmp_path):
    directory, config, params, _ = model
    write_checkpoint(tmp_path / "theirs", config, params, FrameSources(source=directory))
    before, after = stored(directory), stored(tmp_path / "theirs")
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])
    ours = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert ours == json.loads((directory / "config.json").read_text())


def test_a_model_of_our_own_with_vision_is_written_for_transformers(model, tmp_path):
    _, config, params, _ = model
    write_checkpoint(tmp_path / "own", config, params)
    again, found = golden.load(tmp_path / "own", vision=True)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, found, params)
    assert again.vision.token_id == 60
    assert again.vision.both_ways == (again.vision.connector == "pooled")


@pytest.mark.parametrize("new", ["model.vision_tower.vision_model.", "vision_tower.vision_model."])
def test_tensors_of_gemma_are_found_under_old_and_new_names(tmp_path, new):
    source = golden.ROOT / "gemma3_vision"
    old = {"vision_tower.": new, "language_model.model.": "model.language_model."}
    shutil.copy(source / "config.json", tmp_path)
    tensors = stored(source)
    for before, after in old.items():
        tensors = {name.replace(before, after): x for name, x in tensors.items()}
    tensors[f"{new}head.probe"] = np.zeros(3, np.float32)  # Pooling that is not used.
    save_file(tensors, tmp_path / "model.safetensors")
    config, params = golden.load(tmp_path, vision=True)
    same, expected = golden.load(source, vision=True)
    assert config == same
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    write_checkpoint(tmp_path / "out", config, params, FrameSources(source=tmp_path))
    assert stored(tmp_path / "out").keys() == tensors.keys()


def test_weights_of_another_tower_are_refused(tmp_path):
    source = golden.ROOT / "smolvlm"
    shutil.copy(source / "config.json", tmp_path)
    tensors = {name.replace("fc1", "fc9"): x for name, x in stored(source).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    golden.load(tmp_path)
    with pytest.raises(ValueError, match=r"lacks 4 of .* such as model\.vision_model.*fc1"):
        golden.load(tmp_path, vision=True)


@pytest.mark.parametrize(
    ("where", "changes", "message"),
    [
        ("vision_config", {"hidden_act": "quick_gelu"}, "vision_config.hidden_act='quick_gelu'"),
        ("vision_config", {"num_channels": 1}, "vision_config.num_channels=1, but only 3"),
        (
            "vision_config",
            {"image_size": "big"},
            "vision_config.image_size='big', but only a whole",
        ),
        ("vision_config", {"image_size": 18}, "image_size=18 must be a multiple of .*patch_size=4"),
        (
            None,
            {"mm_tokens_per_image": 9},
            "tile_tokens=9 must be the square of a divisor of the 4",
        ),
        (None, {"image_token_index": 70}, "token_id=70 must be below model.vocab_size=61"),
        (None, {"vision_config": 3}, "vision_config=3, but only an object"),
    ],
)
def test_vision_that_we_do_not_have_is_refused(where, changes, message):
    values = golden.values("gemma3_vision")
    (values[where] if where else values).update(changes)
    assert model_config(values).vision is None
    with pytest.raises(ValueError, match=message):
        model_config(values, vision=True)


@pytest.mark.parametrize("patches", [25, 128])
def test_tiles_whose_patches_transformers_numbers_twice_are_refused(patches):
    values = golden.values("smolvlm") | {"scale_factor": 1}
    values["vision_config"]["image_size"] = 4 * patches
    with pytest.raises(ValueError, match=r"image_size=\d+, but only a size at which"):
        model_config(values, vision=True)
    values["vision_config"]["image_size"] = 4 * 27
    assert model_config(values, vision=True).vision.tile_tokens == 27**2


def test_idefics_3_is_read_like_smolvlm():
    values = golden.values("smolvlm") | {"model_type": "idefics3"}
    assert model_config(values, vision=True) == model_config(golden.values("smolvlm"), vision=True)


def test_vision_that_transformers_does_not_have_is_refused():
    config, _ = golden.load(golden.ROOT / "smolvlm", vision=True)
    vision = dataclasses.replace(config.vision, both_ways=True)
    with pytest.raises(ValueError, match=r"llama is nearest, but for vision="):
        config_values(dataclasses.replace(config, vision=vision), "float32")
