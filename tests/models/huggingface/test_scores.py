"""Reward models with a scalar head: the scores of torch, and the way through files and back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import heads, lora
from rl_sync.models.config import HEAD, Lora
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.transformer import init_params, param_axes
from tests.models import tiny
from tests.models.huggingface import golden

MODELS = ["llama_score", "qwen2_score", "qwen3_score", "gemma3_score"]
TOKENS = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 0, 0]], np.int32)


def scores(config, params, tokens, lengths):
    run = jax.jit(heads.token_scalars, static_argnums=0)
    return heads.last_scalars(run(config, params, tokens), jnp.asarray(lengths))


@pytest.mark.gate
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_transformers(name):
    config, params = golden.load(golden.ROOT / name)
    assert config.scalar_head
    expected = golden.expected(name)
    ours = scores(config, params, expected["tokens"], expected["lengths"])
    scale = np.abs(expected["scores"]).max()
    assert np.std(expected["scores"]) > 0.01 * scale
    np.testing.assert_allclose(ours, expected["scores"], rtol=0, atol=1e-4 * scale)


@pytest.mark.gate
@pytest.mark.parametrize("name", MODELS)
def test_a_reward_model_goes_through_files_and_back(name, tmp_path):
    source = golden.ROOT / name
    config, params = golden.load(source)
    for target, given in ((tmp_path / "own", None), (tmp_path / "copy", source)):
        write_checkpoint(target, config, params, FrameSources(source=given))
        again, same = golden.load(target)
        assert again == config
        jax.tree.map(np.testing.assert_array_equal, same, params)
        values = golden.json.loads((target / "config.json").read_text())
        assert values["architectures"][0].endswith("ForSequenceClassification")
        assert len(values["id2label"]) == 1


@pytest.mark.nightly
@pytest.mark.samples("plain")
@pytest.mark.parametrize("name", ["plain", "biased and untied"])
def test_a_model_with_a_head_has_no_output_projection_and_else_the_same_start(name):
    plain = tiny.VARIANTS[name]
    config = dataclasses.replace(plain, scalar_head=True)
    params, key = init_params(config, jax.random.key(0)), jax.random.key(0)
    without = {k: v for k, v in init_params(plain, key).items() if k != "unembedding"}
    jax.tree.map(np.testing.assert_array_equal, {**params, HEAD: None}, {**without, HEAD: None})
    assert set(params[HEAD]) == {"kernel"}
    assert jax.tree.structure(param_axes(config)) == jax.tree.structure(params)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_begins_a_reward_model_with_a_head_still_to_be_drawn(tied, tmp_path):
    plain = dataclasses.replace(tiny.CONFIG, tie_embeddings=tied)
    params = tiny.params(plain)
    write_checkpoint(tmp_path / "policy", plain, params)
    config = dataclasses.replace(load_config(tmp_path / "policy"), scalar_head=True)
    abstract = golden.abstract(config)
    with pytest.raises(ValueError, match=r"lacks 1 of .* such as score\.weight"):
        load_params(tmp_path / "policy", config, abstract)
    del abstract[HEAD]
    loaded = load_params(tmp_path / "policy", config, abstract)
    trunk = {k: v for k, v in params.items() if k != "unembedding"}
    jax.tree.map(np.testing.assert_array_equal, loaded, trunk)


@pytest.mark.nightly
def test_a_head_is_trained_with_adapters_and_stays_when_they_are_merged():
    config = dataclasses.replace(tiny.CONFIG, scalar_head=True, lora=Lora(2, 4.0))
    params = init_params(config, jax.random.key(0))
    adapters, base = lora.split(params)
    assert HEAD in adapters
    assert HEAD not in base
    jax.tree.map(np.testing.assert_array_equal, lora.join(adapters, base), params)
    merged = lora.merge(config, params)
    before = scores(config, params, TOKENS, [5, 3])
    after = scores(lora.merged_config(config), merged, TOKENS, [5, 3])
    np.testing.assert_allclose(after, before, rtol=1e-5)
