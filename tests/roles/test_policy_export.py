"""A run's newest snapshot as a checkpoint."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import snapshot_path
from rl_sync.images import Image
from rl_sync.models import lora
from rl_sync.models.huggingface.reading import load_config
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.checkpoint_frame import frame_of
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.roles.policy_export import export, export_adapters
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer_files import IMAGE
from rl_sync.workdir import Workdir
from tests.models import tiny as tiny_model
from tests.models.huggingface import golden
from tests.models.meshes import layout
from tests.runs import tiny

pytestmark = pytest.mark.gate

CHECKPOINT = golden.ROOT / "qwen2"
TOKENIZER = golden.ROOT.parent / "tokenizer"


def config_of(
    workdir: Path,
    tokenizer: Path | None = None,
    task: dict[str, object] | None = None,
    **model: object,
):
    """The config of a small run."""
    config = {**tiny.get_config().to_dict(), "workdir": str(workdir)}
    for name, value in model.items():
        is_section = isinstance(value, dict)
        config["model"][name] = {**config["model"][name], **value} if is_section else value
    config["task"] |= task or {}
    config["tokenizer"]["path"] = None if tokenizer is None else str(tokenizer)
    return config


def run_in(
    workdir: Path,
    tokenizer: Path | None = None,
    task: dict[str, object] | None = None,
    **model: object,
):
    """The work directory of a run: its config, its model and the parameters of two snapshots."""
    settings = read_settings(config_of(workdir, tokenizer, task, **model))
    workdir.mkdir()
    Workdir(workdir).config.write_text(json.dumps(settings.resolved()))
    task = wiring.load_task(settings)
    model_config = wiring.model_config(settings, task)
    parameters = parameters_of(settings, task, layout())
    for step in (1, 2):
        params = tiny_model.params(model_config, seed=step)
        if model_config.lora:
            params = lora.join(lora.split(params)[0], parameters.base())
        state = {"params": parameters.kept(params), "more": np.ones(3)}
        metadata = {"base_digest": parameters.base_digest(params)}
        SnapshotFolder(Workdir(workdir).snapshots).save(step, state, metadata)
    return settings, model_config, params


def test_a_run_from_scratch_becomes_a_checkpoint_with_its_own_tokenizer(tmp_path):
    settings, model, params = run_in(tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "out", None) == 2
    config = load_config(tmp_path / "out")
    assert config == dataclasses.replace(model, max_length=2048)
    _, again = golden.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again, params)
    tokenizer = wiring.load_task(settings).tokenizer
    stored = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert stored["model"]["vocab"]["7"] == tokenizer.encode("7")[0]
    values = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert values["eos_token_id"] == tokenizer.eos_id


@pytest.mark.nightly
def test_a_policy_that_sees_becomes_a_gemma_with_its_processing_of_images(tmp_path):
    sees = {"image_size": 16, "tile_tokens": 4, "embed_dim": 16, "num_heads": 2, "mlp_dim": 24}
    settings, model, params = run_in(tmp_path / "run", task={"name": "digits"}, vision=sees)
    export(tmp_path / "run", tmp_path / "out", None)
    task = wiring.load_task(settings)
    config = load_config(tmp_path / "out", vision=True)
    # Written in full: Gemma has a RoPE of its own for sliding layers, of which there are none.
    same = {"query_scale": model.attention_scale, "local_rope_base": model.rope_base}
    assert config == dataclasses.replace(model, max_length=2048, **same)
    text = json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]
    assert text["sliding_window"] == 2048, "transformers cannot do without"
    _, again = golden.load(tmp_path / "out", vision=True)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    processor = checkpoint_tiles(str(tmp_path / "out"))
    wide = Image.of_array(np.random.default_rng(3).integers(0, 255, (20, 50, 3), np.uint8))
    np.testing.assert_array_equal(processor.tiles(wide), task.processor.tiles(wide))
    assert processor.tile_tokens == 4
    vocabulary = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["vocab"]
    assert vocabulary[IMAGE] == model.vision.token_id


def test_longer_rows_than_the_least_positions_are_as_many_positions(tmp_path):
    run_in(tmp_path / "run", task={"max_completion_tokens": 3000})
    export(tmp_path / "run", tmp_path / "out", None)
    assert load_config(tmp_path / "out").max_length == 3006


@pytest.mark.nightly
def test_a_run_from_a_checkpoint_keeps_its_config_and_dtype(tmp_path):
    settings, _, params = run_in(tmp_path / "run", path=str(CHECKPOINT))
    export(tmp_path / "run", tmp_path / "out", "bfloat16")
    assert load_config(tmp_path / "out") == load_config(CHECKPOINT)
    assert load_config(CHECKPOINT).max_length > wiring.load_task(settings).row_tokens
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (values["model_type"], values["dtype"]) == ("qwen2", "bfloat16")
    norm = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    np.testing.assert_array_equal(norm, params["final_norm"]["scale"].astype(norm.dtype))


@pytest.mark.nightly
def test_adapters_are_exported_merged_into_what_they_adapt(tmp_path):
    adapters = {"rank": 2, "alpha": 3.0, "targets": "q,down"}
    _, _, params = run_in(tmp_path / "run", path=str(CHECKPOINT), lora=adapters)
    export(tmp_path / "run", tmp_path / "out", None)
    assert load_config(tmp_path / "out") == load_config(CHECKPOINT)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == load_file(CHECKPOINT / "model.safetensors").keys()
    attention, mlp = (params["blocks"][part] for part in ("attention", "mlp"))
    layer, scale = 1, 3.0 / 2
    down = (
        mlp["down"][layer]
        + scale * mlp["down_lora"]["down_a"][layer] @ (mlp["down_lora"]["down_b"][layer])
    )
    name = f"model.layers.{layer}.mlp.down_proj.weight"
    np.testing.assert_allclose(written[name], down.T, atol=1e-6)
    _, _, K, queries, H = attention["qkv"].shape
    change = attention["qkv_lora"]["q_a"][layer] @ (
        attention["qkv_lora"]["q_b"][layer].reshape(2, -1)
    )
    query = attention["qkv"][layer, :, :, :-2].reshape(-1, K * (queries - 2) * H) + scale * change
    name = f"model.layers.{layer}.self_attn.q_proj.weight"
    np.testing.assert_allclose(written[name], query.T, atol=1e-6)


def test_adapters_alone_are_written_for_peft_and_read_again(tmp_path):
    adapters = {"rank": 2, "alpha": 3.0, "targets": "q,down"}
    settings, _, params = run_in(tmp_path / "run", path=str(CHECKPOINT), lora=adapters)
    assert export_adapters(tmp_path / "run", tmp_path / "out", None) == 2
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    down, up = (
        stored[f"base_model.model.model.layers.1.self_attn.q_proj.lora_{half}.weight"]
        for half in "AB"
    )
    ours = params["blocks"]["attention"]["qkv_lora"]
    np.testing.assert_array_equal(down, ours["q_a"][1].T)
    np.testing.assert_array_equal(up, ours["q_b"][1].reshape(2, -1).T)
    values = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert values["base_model_name_or_path"] == str(CHECKPOINT)
    assert (values["r"], values["lora_alpha"]) == (2, 3)
    config = {**settings.resolved(), "model": {**settings.resolved()["model"]}}
    config["model"]["lora"] = {"path": str(tmp_path / "out"), "rank": 0, "alpha": None}
    config["model"]["lora"]["targets"] = None
    again = read_settings(config)
    assert again.model.lora.lora() == settings.model.lora.lora()
    begun = parameters_of(again, wiring.load_task(again), layout()).initial()
    jax.tree.map(np.testing.assert_array_equal, begun, params)


def test_a_run_without_adapters_of_a_checkpoint_has_none_to_export(tmp_path):
    run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no adapters that PEFT could load.*without --adapter"):
        export_adapters(tmp_path / "run", tmp_path / "out", None)


@pytest.mark.nightly
@pytest.mark.parametrize("path", [None, str(CHECKPOINT)])
def test_the_tokenizer_of_a_run_is_exported_with_the_ids_that_end_a_completion(path, tmp_path):
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(TOKENIZER, tokenizer)
    generation = {"eos_token_id": [2, 7], "top_k": 20}
    (tokenizer / "generation_config.json").write_text(json.dumps(generation))
    settings, _, _ = run_in(tmp_path / "run", tokenizer, path=path)
    export(tmp_path / "run", tmp_path / "out", None)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_text() == (tokenizer / name).read_text()
    stored = pretrained.load(TokenizerConfig(str(tmp_path / "out")))
    used = wiring.load_task(settings).tokenizer
    assert (stored.eos_ids, stored.pad_id) == (used.eos_ids, used.pad_id)
    values, generation = (
        json.loads((tmp_path / "out" / name).read_text())
        for name in ("config.json", "generation_config.json")
    )
    assert values["eos_token_id"] == generation["eos_token_id"] == list(used.eos_ids)
    assert values["pad_token_id"] == generation["pad_token_id"] == used.pad_id
    assert generation["top_k"] == 20


def test_a_checkpoint_keeps_all_that_ends_a_reply_the_templates_end_first(tmp_path):
    checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
    words = json.loads((checkpoint / "tokenizer.json").read_text())
    words["added_tokens"].append(words["added_tokens"][-1] | {"id": 7, "content": "#"})
    (checkpoint / "tokenizer.json").write_text(json.dumps(words))
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [2, 4], "top_k": 20}')
    (checkpoint / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}#{% endif %}"
        "{% endfor %}"
    )
    settings = read_settings(config_of(tmp_path / "run", path=str(checkpoint)))
    task = wiring.load_task(settings)
    assert task.tokenizer.eos_ids == (7, 2, 4)
    (tmp_path / "out").mkdir()
    for name, content in frame_of(settings, task, wiring.model_config(settings, task)).items():
        (tmp_path / "out" / name).write_bytes(content)
    values, generation = (
        json.loads((tmp_path / "out" / name).read_text())
        for name in ("config.json", "generation_config.json")
    )
    assert values["eos_token_id"] == generation["eos_token_id"] == [7, 2, 4]
    assert generation["top_k"] == 20
    again = pretrained.load(TokenizerConfig(str(tmp_path / "out"), "no", None))
    assert set(again.eos_ids) == {2, 4, 7}, "whoever asks without the template stops there, too"


def test_the_newest_snapshot_that_is_whole_is_exported(tmp_path, caplog):
    run_in(tmp_path / "run")
    metadata = [snapshot_path(Workdir(tmp_path / "run").snapshots, step) for step in (1, 2)]
    (metadata[1] / "metadata.json").write_text("{}")
    assert export(tmp_path / "run", tmp_path / "out", None) == 1
    assert "The snapshot of step 1 is used instead." in caplog.text
    assert metadata[1].exists(), "the run may still be at work there"
    (metadata[0] / "metadata.json").unlink()
    with pytest.raises(ConfigError, match=r"No snapshot in .* is whole"):
        export(tmp_path / "run", tmp_path / "other", None)


def test_a_run_that_cannot_be_exported_is_named_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"run is not the work directory of a run"):
        export(tmp_path / "run", tmp_path / "out", None)
    run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run exists and is not empty; name a new"):
        export(tmp_path / "run", tmp_path / "run", None)
    with pytest.raises(ConfigError, match=r"dtype='int4' is not one of float32"):
        export(tmp_path / "run", tmp_path / "out", "int4")
    shutil.rmtree(Workdir(tmp_path / "run").snapshots)
    with pytest.raises(ConfigError, match=r"no snapshot yet: .*checkpoint.every_steps=5"):
        export(tmp_path / "run", tmp_path / "out", None)
    assert not (tmp_path / "out").exists()
