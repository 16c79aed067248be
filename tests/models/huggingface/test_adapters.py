"""Adapters of PEFT are read and written, and compute what PEFT computes with them."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_sync.models import lora
from rl_sync.models.huggingface.adapters import load_adapters, read_adapters, write_adapters
from rl_sync.models.huggingface.reading import load_config
from tests.models import tiny
from tests.models.huggingface import golden

ADAPTERS = golden.ROOT.parent / "adapters"
NAMES = ("plain", "all_linear", "patterns")
BASE = golden.ROOT / "qwen2"


@functools.cache
def model_with(adapters):
    """The checkpoint's model with adapters, and their abstract parameters."""
    config = dataclasses.replace(load_config(BASE), lora=adapters)
    return config, lora.split(golden.abstract(config))[0]["blocks"]


def load(directory):
    """Loads adapters on the first device."""
    stored = read_adapters(directory)
    config, abstract = model_with(stored.lora)
    return config, load_adapters(stored, config, abstract)


def change(blocks, part, group, target, layer, scale):
    """The change of a kernel, as torch holds it: [out, in]."""
    down, up = (np.asarray(blocks[part][group][f"{target}_{half}"][layer]) for half in "ab")
    return scale * (down @ up.reshape(len(up), -1)).T


def by_hand(name, layer, module, scale):
    """scale · B·A of the stored tensors, in float64."""
    stored = load_file(ADAPTERS / name / "adapter_model.safetensors")
    start = f"base_model.model.model.layers.{layer}.{module}_proj.lora_"
    down, up = (stored[f"{start}{half}.weight"].astype(np.float64) for half in "AB")
    return scale * up @ down


def test_each_kernel_changes_by_the_scaled_product_of_its_matrices(subtests):
    """α / r, or α / √r with `use_rslora`, with each module's own r and α."""
    for name, layer, part, group, module, scale in (
        ("plain", 1, "attention", "qkv_lora", "self_attn.q", 6 / 4),
        ("plain", 1, "mlp", "down_lora", "mlp.down", 6 / 4),
        ("all_linear", 2, "attention", "qkv_lora", "self_attn.v", 16 / 2),
        ("patterns", 0, "attention", "qkv_lora", "self_attn.k", 4 / 1**0.5),
        ("patterns", 2, "attention", "out_lora", "self_attn.o", 10 / 4**0.5),
        ("patterns", 0, "mlp", "gate_up_lora", "mlp.gate", 4 / 4**0.5),
        ("patterns", 0, "mlp", "gate_up_lora", "mlp.up", 4 / 4**0.5),
        ("patterns", 2, "mlp", "gate_up_lora", "mlp.up", 3 / 6**0.5),
    ):
        with subtests.test(name=name, layer=layer, module=module):
            config, blocks = load(ADAPTERS / name)
            target = module.rpartition(".")[2]
            found = change(blocks, part, group, target, layer, config.lora.scale)
            wanted = by_hand(name, layer, module, scale)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_a_layer_without_adapters_is_not_changed():
    blocks = load(ADAPTERS / "plain")[1]
    for leaf in jax.tree.leaves(blocks):
        assert not np.asarray(leaf)[[0, 2]].any()
        assert np.asarray(leaf)[1].any()


@pytest.mark.gate
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_peft(name):
    config, blocks = load(ADAPTERS / name)
    params = lora.join({"blocks": blocks}, golden.load(BASE)[1])
    expected = golden.expected("qwen2")
    real = np.arange(expected["tokens"].shape[1]) < expected["lengths"][:, None]
    with np.load(ADAPTERS / name / "expected.npz") as arrays:
        logits = arrays["logits"]
    assert np.abs(logits - expected["logits"]).max() > 0.1, "the adapters change something"
    found = tiny.forward(config, params, expected["tokens"])
    found = np.where(real[..., None], found, 0.0)
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4 * np.abs(logits).max())


def test_written_adapters_are_read_again_as_they_were(tmp_path):
    for name in NAMES:
        config, blocks = load(ADAPTERS / name)
        target = tmp_path / name
        write_adapters(target, config, blocks, base="b", prefix="model.", dtype="float32")
        again, found = load(target)
        assert again.lora == config.lora
        jax.tree.map(np.testing.assert_array_equal, found, blocks)
    values = json.loads((tmp_path / "plain" / "adapter_config.json").read_text())
    assert (values["r"], values["lora_alpha"], values["use_rslora"]) == (4, 6, False)
    assert values["target_modules"] == ["q_proj", "down_proj"]
    with pytest.raises(ValueError, match="exists and is not empty"):
        write_adapters(target, config, blocks, base="b", prefix="model.", dtype="float32")


def test_what_adapters_here_cannot_do_is_refused_by_the_name_of_its_field(tmp_path, subtests):
    shutil.copytree(ADAPTERS / "plain", tmp_path / "a")
    path = tmp_path / "a" / "adapter_config.json"
    values = json.loads(path.read_text())
    for field, value in (
        ("peft_type", "IA3"),
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("trainable_token_indices", [3]),
        ("layer_replication", [[0, 2], [1, 3]]),
        ("alora_invocation_tokens", [5]),
        ("loftq_config", {"loftq_bits": 4}),
        ("a_field_of_tomorrow", {"x": 1}),
        ("r", 2.5),
        ("lora_alpha", 0),
        ("rank_pattern", {"q_proj": 2}),
        ("alpha_pattern", {"(": 2}),
    ):
        with subtests.test(field=field):
            path.write_text(json.dumps({**values, field: value}))
            named = field if field != "rank_pattern" else "self_attn.q_proj with rank 2"
            with pytest.raises(ValueError, match=named) as raised:
                read_adapters(tmp_path / "a")
            assert "\n" not in str(raised.value)
    path.write_text(json.dumps({**values, "lora_dropout": 0.5, "qalora_group_size": 8}))
    assert read_adapters(tmp_path / "a").lora.rank == 4


def test_adapters_of_other_modules_and_models_are_refused_by_name(tmp_path, subtests):
    start = "base_model.model.model.layers."
    stored = load_file(ADAPTERS / "plain" / "adapter_model.safetensors")
    one = np.ones((4, 32), np.float32)
    for name, message in (
        (f"{start}0.mlp.experts.1.up_proj.lora_A.weight", "adapters of experts are not supported"),
        ("base_model.model.lm_head.lora_A.weight", "lm_head.lora_A.weight, and adapters of this"),
        ("base_model.model.model.embed_tokens.weight", "embed_tokens.weight, and adapters"),
        ("base_model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight", "vision_tower"),
        (f"{start}1.self_attn.q_proj.lora_magnitude_vector", "magnitude_vector"),
        (f"{start}1.self_attn.k_proj.lora_A.weight", "lora_A and lora_B of .*k_proj"),
        (f"{start}7.self_attn.q_proj.lora_A.weight", "layer 7, and the model has 3 layers"),
    ):
        with subtests.test(name=name):
            directory = tmp_path / name
            shutil.copytree(ADAPTERS / "plain", directory)
            more = {name: one}
            if "layers.7" in name:
                more[name.replace("lora_A", "lora_B")] = one.T
            save_file({**stored, **more}, directory / "adapter_model.safetensors")
            with pytest.raises(ValueError, match=message):
                load(directory)
    directory = tmp_path / "wide"
    shutil.copytree(ADAPTERS / "plain", directory)
    wide = {f"{start}1.self_attn.q_proj.lora_A.weight": np.ones((4, 40), np.float32)}
    save_file({**stored, **wide}, directory / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"shape \[4, 40\], and the model needs \[4, 32\]"):
        load(directory)
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"holds adapter_model\.bin, which runs code"):
        read_adapters(directory)
