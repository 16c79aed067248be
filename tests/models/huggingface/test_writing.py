import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rl_sync.models.huggingface import writing
from rl_sync.models.huggingface.reading import load_config
from tests.models import tiny
from tests.models.huggingface import golden
from tests.models.huggingface.test_reading import stored


@pytest.mark.gate
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_import_and_export_give_the_same_bytes(family, tmp_path):
    source = golden.ROOT / family
    config, params = golden.load(source)
    writing.write_checkpoint(tmp_path / "ours", config, params, max_file_bytes=40_000)
    writing.write_checkpoint(
        tmp_path / "theirs", config, params, writing.FrameSources(source=source)
    )
    before = stored(source)
    for target in (tmp_path / "ours", tmp_path / "theirs"):
        assert load_config(target) == config
        after = stored(target)
        assert before.keys() == after.keys()
        for name, values in before.items():
            assert values.shape == after[name].shape
            assert values.tobytes() == after[name].tobytes()
    assert not list(tmp_path.glob(".*"))
    files = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert files == sorted({path.name for path in source.iterdir()} - {"expected.npz"})


@pytest.fixture(scope="module")
def model():
    return golden.load(golden.ROOT / "qwen2")


def test_large_checkpoints_are_split_with_an_index(model, tmp_path):
    writing.write_checkpoint(tmp_path / "out", *model, max_file_bytes=40_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors = stored(tmp_path / "out")
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values())
    for path in (tmp_path / "out").glob("*.safetensors"):
        assert path.name in index["weight_map"].values()
        assert path.stat().st_size < 45_000
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # So that tensors align.
    again_config, again = golden.load(tmp_path / "out")
    assert again_config == model[0]
    jax.tree.map(np.testing.assert_array_equal, again, model[1])


@pytest.mark.gate
def test_the_dtype_is_as_imported_or_as_asked(model, tmp_path):
    config, params = model
    writing.write_checkpoint(
        tmp_path / "half", config, params, writing.FrameSources(dtype="bfloat16")
    )
    assert {x.dtype for x in stored(tmp_path / "half").values()} == {np.dtype(ml_dtypes.bfloat16)}
    values = json.loads((tmp_path / "half" / "config.json").read_text())
    assert values["torch_dtype"] == "bfloat16"
    # From there on as imported: widened to float32, and narrowed again without loss.
    _, widened = golden.load(tmp_path / "half")
    assert widened["embedding"].dtype == jnp.float32
    writing.write_checkpoint(
        tmp_path / "again", config, widened, writing.FrameSources(source=tmp_path / "half")
    )
    for name, values in stored(tmp_path / "half").items():
        assert values.tobytes() == stored(tmp_path / "again")[name].tobytes()
    writing.write_checkpoint(
        tmp_path / "wide",
        config,
        params,
        writing.FrameSources(source=tmp_path / "half", dtype="float32"),
    )
    assert stored(tmp_path / "wide")["model.norm.weight"].dtype == np.float32
    values = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert values["torch_dtype"] == "float32"


def test_files_and_token_ids_of_our_own_are_written_along(model, tmp_path):
    writing.write_checkpoint(
        tmp_path / "out",
        *model,
        writing.FrameSources(files={"tokenizer.json": "{}"}, token_ids={"eos_token_id": 7}),
    )
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == 7


def test_nothing_is_overwritten_and_nothing_is_left_half_done(model, tmp_path, monkeypatch):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"full exists and is not empty"):
        writing.write_checkpoint(full, *model)
    with pytest.raises(ValueError, match=r"dtype='int8' is not one of float32"):
        writing.write_checkpoint(tmp_path / "out", *model, writing.FrameSources(dtype="int8"))
    with monkeypatch.context() as broken:
        broken.setattr(writing, "_write_file", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writing.write_checkpoint(tmp_path / "out", *model)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()  # Empty: as good as none.
    writing.write_checkpoint(tmp_path / "out", *model)
    assert not list(tmp_path.glob(".*"))


def test_a_model_that_transformers_does_not_have_is_refused_before_anything_is_written(tmp_path):
    config = dataclasses.replace(tiny.CONFIG, scale_embedding=True)
    with pytest.raises(ValueError, match=r"no such model .*llama is nearest.*scale_embedding=True"):
        writing.write_checkpoint(tmp_path / "out", config, tiny.params(config))
    assert not list(tmp_path.iterdir())
