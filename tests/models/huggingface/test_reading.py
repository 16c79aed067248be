import json
import shutil
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_sync.models.huggingface import reading
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from tests.models.huggingface import golden


def stored(directory):
    """Reads all tensors of a directory."""
    return {
        name: values
        for path in directory.glob("*.safetensors")
        for name, values in load_file(path).items()
    }


@pytest.fixture
def copy(tmp_path):
    """Copies a checkpoint, so that a test can damage it."""
    directory = tmp_path / "model"
    shutil.copytree(golden.ROOT / "qwen2", directory)
    return directory


def rewrite(directory, change):
    tensors = stored(directory)
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_host_memory_never_holds_more_than_one_tensor(monkeypatch):
    directory = golden.ROOT / "qwen3_moe"
    config = reading.load_config(directory)
    alive, peak, total = [0], [0], [0]
    read = reading.TensorFiles.read

    def tracked(self, name, where):
        values = np.array(read(self, name, where))  # Owns its memory, so that views keep it.
        alive[0] += values.nbytes
        total[0] += values.nbytes
        peak[0] = max(peak[0], alive[0])
        weakref.finalize(values, lambda size: alive.__setitem__(0, alive[0] - size), values.nbytes)
        return values

    monkeypatch.setattr(reading.TensorFiles, "read", tracked)
    load_params(directory, config, golden.abstract(config))
    sizes = [values.nbytes for values in stored(directory).values()]
    assert peak[0] == max(sizes)
    assert total[0] == sum(sizes)


@pytest.mark.gate
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_is_widened_to_the_bit_or_kept(copy, dtype):
    wide = stored(copy)
    rewrite(copy, lambda tensors: tensors.update({k: x.astype(dtype) for k, x in wide.items()}))
    config = reading.load_config(copy)
    _, params = golden.load(copy)
    name = "model.layers.1.mlp.down_proj.weight"
    rounded = wide[name].astype(dtype)
    down = params["blocks"]["mlp"]["down"]
    assert down.dtype == jnp.float32
    np.testing.assert_array_equal(down[1], rounded.T.astype(np.float32))
    kept = load_params(copy, config, golden.abstract(config, dtype))
    assert kept["blocks"]["mlp"]["down"].dtype == dtype
    np.testing.assert_array_equal(np.asarray(kept["blocks"]["mlp"]["down"])[1], rounded.T)


def test_a_cached_hub_name_is_found_and_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    shutil.copytree(golden.ROOT / "qwen2", snapshot)
    refs = tmp_path / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    found = reading.locate("some/model")
    assert reading.load_config(found).vocab_size == 96
    with pytest.raises(ValueError, match=r"'other/model' is neither .* hf download other/model"):
        reading.locate("other/model")
    with pytest.raises(ValueError, match="'no/such/place/at/all' is neither a directory"):
        reading.locate("no/such/place/at/all")
    (tmp_path / "file").touch()
    for path in (str(tmp_path / "none"), "./none", "~/none", str(tmp_path / "file")):
        with pytest.raises(ValueError, match="is no directory: give that of a checkpoint"):
            reading.locate(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks 1 of 38 tensors .* model\.norm\.weight"),
        (
            lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": np.zeros(32)}),
            r"has 1 tensors that its .* model\.layers\.0\.self_attn\.o_proj\.bias",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(31, np.float32)}),
            r"model\.norm\.weight .* shape \[31\], but its config\.json implies \[32\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(32, np.int8)}),
            r"model\.norm\.weight .* stored as I8",
        ),
        (lambda t: t.pop("model.embed_tokens.weight"), r"0 tensors called …embed_tokens\.weight"),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_refused(copy, change, message):
    config = reading.load_config(copy)
    rewrite(copy, change)
    with pytest.raises(ValueError, match=message):
        reading.load_config(copy)
    with pytest.raises(ValueError, match=message):
        load_params(copy, config, golden.abstract(config))


def test_what_a_tied_or_an_older_checkpoint_holds_besides_is_passed_over(copy):
    _, before = golden.load(copy)
    beside = {"lm_head.weight": "model.embed_tokens.weight"}
    beside |= {"model.layers.0.self_attn.rotary_emb.inv_freq": "model.norm.weight"}
    rewrite(copy, lambda t: t.update({name: t[other] for name, other in beside.items()}))
    _, after = golden.load(copy)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_an_unembedding_of_its_own_counts_though_the_config_says_that_it_is_tied(copy):
    """transformers 5 also ties only an unembedding that is equal or missing."""
    config, before = golden.load(copy)
    assert config.tie_embeddings
    other = np.array(stored(copy)["model.embed_tokens.weight"])
    other[-1, -1] += 1
    rewrite(copy, lambda t: t.update({"lm_head.weight": other}))
    config, params = golden.load(copy)
    assert not config.tie_embeddings
    np.testing.assert_array_equal(params["unembedding"], other)
    np.testing.assert_array_equal(params["embedding"], before["embedding"])
    write_checkpoint(copy.parent / "out", config, params, FrameSources(source=copy))
    written = json.loads((copy.parent / "out" / "config.json").read_text())
    assert written["tie_word_embeddings"] is False
    np.testing.assert_array_equal(stored(copy.parent / "out")["lm_head.weight"], other)


def test_large_embeddings_are_compared_to_the_last_row(copy, monkeypatch):
    monkeypatch.setattr(reading, "_COMPARED_ROWS", 7)
    embedding = stored(copy)["model.embed_tokens.weight"]
    rewrite(copy, lambda t: t.update({"lm_head.weight": embedding}))
    assert reading.load_config(copy).tie_embeddings
    for row in (0, 7, len(embedding) - 1):
        other = np.array(embedding)
        other[row] += 1
        rewrite(copy, lambda t, other=other: t.update({"lm_head.weight": other}))
        assert not reading.load_config(copy).tie_embeddings, row


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_language_model_of_gemma_with_vision_is_found(tmp_path, prefix):
    values = golden.values("gemma3")
    text = {key: value for key, value in values.items() if key != "architectures"}
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", prefix): x for name, x in stored(golden.ROOT / "gemma3").items()
    }
    tensors["vision_tower.vision_model.post_layernorm.weight"] = np.zeros(3, np.float32)
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = np.zeros(3, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    config, params = golden.load(tmp_path)
    plain, same = golden.load(golden.ROOT / "gemma3")
    assert config == plain
    jax.tree.map(np.testing.assert_array_equal, params, same)


def test_a_directory_without_a_model_is_refused(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds neither model\.safetensors nor model\.safe"):
        golden.load(copy)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"names model-00001-of-00002\.safetensors, which is not"):
        golden.load(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        reading.load_config(copy)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
INDEX = "model.safetensors.index.json"


def _cut(directory):
    path = directory / WEIGHTS
    path.write_bytes(path.read_bytes()[:-4])


def _shards(directory, weight_map):
    (directory / WEIGHTS).rename(directory / "a.safetensors")
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / WEIGHTS).write_text(POINTER), rf"{WEIGHTS} is a Git LFS .*`git lfs pull`"),
        (_cut, rf"{WEIGHTS} is not a whole safetensors file .*: fetch the file again"),
        (lambda d: (d / WEIGHTS).write_bytes(b""), rf"{WEIGHTS} is not a whole safetensors file"),
        (lambda d: _shards(d, None), rf"{INDEX} has no weight_map"),
        (lambda d: _shards(d, ["x"]), rf"{INDEX} has no weight_map"),
        (lambda d: _shards(d, {"x": 3}), rf"{INDEX} has no weight_map"),
        (
            lambda d: _shards(d, {"x": "a.safetensors", "y": "b.safetensors", "z": "c"}),
            rf"{INDEX} names b\.safetensors, which is not there, nor are 1 others: .* fetch",
        ),
        (
            lambda d: _shards(d, {"model.no.weight": "a.safetensors"}),
            r"that model\.no\.weight is in a\.safetensors, which lacks it",
        ),
        (lambda d: (d / CONFIG).write_text("[1]"), rf"{CONFIG} must hold an object .* not \[1\]"),
        (lambda d: (d / CONFIG).write_text('{"a"'), rf"{CONFIG} is not JSON .* fetch the file"),
        (lambda d: (d / CONFIG).write_text(POINTER), rf"{CONFIG} is a Git LFS pointer"),
        (lambda d: (d / CONFIG).write_bytes(b"\xff"), rf"{CONFIG} is not JSON .*utf-8"),
        (lambda d: (d / CONFIG).write_text("[" * 100_000), rf"{CONFIG} is nested too deeply"),
    ],
)
def test_a_file_that_is_broken_is_named_before_anything_starts(copy, damage, message):
    damage(copy)
    with pytest.raises(ValueError, match=message) as refused:
        reading.load_config(copy)
    assert "\n" not in str(refused.value)


def test_a_link_into_nowhere_is_named(copy):
    (copy / WEIGHTS).unlink()
    (copy / WEIGHTS).symlink_to(copy / "blobs" / "abc")
    with pytest.raises(ValueError, match=rf"{WEIGHTS} is not there: the download is incomplete"):
        reading.load_config(copy)


def test_a_config_alone_is_enough_to_plan_with(copy):
    config = reading.load_config(copy)
    (copy / WEIGHTS).unlink()
    assert reading.load_config(copy) == config


SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rl_sync.models.huggingface import reading
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.transformer import hidden_states, logits, param_axes
from tests.models.huggingface import golden

mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
RULES = {
    "usual": dict(embed="fsdp", kv="tensor", mlp="tensor", vocab="tensor", experts="data"),
    "odd": {"head_dim": "fsdp", "embed": ("data", "tensor"), "mlp": "fsdp"},
}
for family, rules in (pair.split(":") for pair in sys.argv[1:]):
    whole, here = golden.load(golden.ROOT / family)
    read = []
    counted = reading.TensorFiles.read
    reading.TensorFiles.read = lambda *args: read.append(counted(*args).size) or counted(*args)
    shard = lambda axes, x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, P(*(RULES[rules].get(a) for a in axes)))
    )
    like = jax.tree.map(shard, param_axes(whole), here, is_leaf=lambda x: isinstance(x, P))
    there = load_params(golden.ROOT / family, whole, like)
    reading.TensorFiles.read = counted
    jax.tree.map(lambda a, b: a.sharding == b.sharding or sys.exit("sharding"), there, like)
    jax.tree.map(np.testing.assert_array_equal, here, there)
    shards = there["blocks"]["attention"]["qkv"].addressable_shards
    assert len({str(shard.index) for shard in shards}) == (4 if rules == "usual" else 8)
    if rules == "usual":
        expected = golden.expected(family)
        tokens = expected["tokens"]
        run = jax.jit(lambda params: logits(whole, params, hidden_states(whole, params, tokens)))
        real = (np.arange(24) < expected["lengths"][:, None])[..., None]
        error = np.abs(np.where(real, run(there), 0) - expected["logits"]).max()
        assert error < 1e-4 * np.abs(expected["logits"]).max(), error
    print(family, rules, sum(read))
"""


@pytest.mark.nightly
def test_parameters_land_in_their_shards_and_sharding_changes_nothing():
    pairs = ["qwen2:odd", "qwen3_moe:usual", "gemma3:usual"]
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, *pairs],
        env={
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [" ".join(line.split()[:2]) for line in done.stdout.splitlines()] == [
        pair.replace(":", " ") for pair in pairs
    ]
    # Where parameters lie in whole heads and rows, nothing is read twice.
    for line in done.stdout.splitlines():
        family, rules, read = line.split()
        if rules == "usual":
            sizes = (x.size for x in stored(golden.ROOT / family).values())
            assert int(read) == sum(sizes)
