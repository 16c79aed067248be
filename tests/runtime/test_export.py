"""A run's newest snapshot as a checkpoint."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl_sync.models.huggingface.reading import load_config
from rl_sync.runtime.export import export
from rl_sync.runtime.settings import ConfigError, RunSettings
from rl_sync.runtime.snapshots import save_snapshot
from tests.models import tiny as tiny_model
from tests.models.huggingface import golden
from tests.runs import tiny

CHECKPOINT = golden.ROOT / "qwen2"


def run_in(workdir: Path, **model: object):
    """The work directory of a run: its config, its model and the parameters of two snapshots."""
    config = {**tiny.get_config().to_dict(), "workdir": str(workdir)}
    config["model"] |= model
    settings = RunSettings.from_config(config)
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps(settings.resolved()))
    model_config = settings.model_config(settings.load_task())
    for step in (1, 2):
        params = tiny_model.params(model_config, seed=step)
        save_snapshot(workdir / "checkpoints", step, {"params": params, "more": np.ones(3)}, {})
    return settings, model_config, params


def test_a_run_from_scratch_becomes_a_checkpoint_with_its_own_tokenizer(tmp_path):
    settings, model, params = run_in(tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "out", None) == 2
    config = load_config(tmp_path / "out")
    assert config == model
    _, again = golden.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again, params)
    tokenizer = settings.load_task().tokenizer
    stored = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert stored["model"]["vocab"]["7"] == tokenizer.encode("7")[0]
    values = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert values["eos_token_id"] == tokenizer.eos_id


def test_a_run_from_a_checkpoint_keeps_its_config_and_dtype(tmp_path):
    _, _, params = run_in(tmp_path / "run", path=str(CHECKPOINT))
    export(tmp_path / "run", tmp_path / "out", "bfloat16")
    assert load_config(tmp_path / "out") == load_config(CHECKPOINT)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (values["model_type"], values["dtype"]) == ("qwen2", "bfloat16")
    norm = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    np.testing.assert_array_equal(norm, params["final_norm"]["scale"].astype(norm.dtype))


def test_a_run_that_cannot_be_exported_is_named_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"run is not the work directory of a run"):
        export(tmp_path / "run", tmp_path / "out", None)
    run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run exists and is not empty; name a new"):
        export(tmp_path / "run", tmp_path / "run", None)
    with pytest.raises(ConfigError, match=r"dtype='int4' is not one of float32"):
        export(tmp_path / "run", tmp_path / "out", "int4")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ConfigError, match=r"no snapshot yet: .*checkpoint.every_steps=5"):
        export(tmp_path / "run", tmp_path / "out", None)
    assert not (tmp_path / "out").exists()
