"""The kernels that a GPU starts for a token and for a step, and the CUDA graph that holds them."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_sync.configs import base
from rl_sync.plan.compiled_text import CompiledProgramText, MemoryUse
from rl_sync.plan.kernel_counts import kernels_of_step, kernels_of_token
from rl_sync.plan.lowered_programs import layout_on, rollout_programs
from rl_sync.settings.config_reading import read_settings

LAYERS = 6
TEXT = """\
HloModule jit_decode_chunk

%fused (p0: f32[8]) -> f32[8] {
  %p0 = f32[8]{0} parameter(0)
  ROOT %dot = f32[8]{0} multiply(%p0, %p0), metadata={op_name="f/blocks/mlp/dot_general"}
}

%layer (p: (f32[8])) -> (f32[8]) {
  %p = (f32[8]{0}) parameter(0)
  %product = f32[8]{0} fusion(%p), kind=kCustom, calls=%fused
  %norm = f32[8]{0} fusion(%product), metadata={op_name="f/blocks/norm/convert_element_type"}
  %slice = f32[8]{0} copy(%norm), metadata={op_name="f/Transformer/while/body/copy"}
  ROOT %t = (f32[8]{0}) tuple(%slice)
}

%token (p: (f32[8])) -> (f32[8]) {
  %p = (f32[8]{0}) parameter(0)
  %w = (f32[8]{0}) while(%p), body=%layer, config={"known_trip_count":{"n":"4"}}
  %k = f32[8]{0} custom-call(%w), metadata={op_name="f/blocks/attend_new/pallas_call"}
  %sample = f32[8]{0} fusion(%k), metadata={op_name="f/while/body/reduce_max"}
  ROOT %t = (f32[8]{0}) tuple(%sample)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %before = f32[8]{0} copy(%a)
  %w2 = (f32[8]{0}) while(%before), condition=%c2, body=%token
  ROOT %after = f32[8]{0} copy(%w2)
}
"""


def test_kernels_of_loops_count_once_a_trip_and_are_named():
    read = CompiledProgramText(TEXT, MemoryUse(0, 0, 0, 0, 0))
    found = kernels_of_token(read, layers=4)
    assert found.of_layers == {"products": 4, "norm": 4, "body copy": 4, "attend_new": 1}
    assert (found.total, found.besides, found.of_layer) == (14, 1, 13 / 4)
    assert kernels_of_step(read) == 16


def _decode(devices, **changes):
    """Returns the decode program of a small model of the family of Qwen2.5 on one GPU."""
    config = base.get_config()
    sizes = dict(embed_dim=512, num_heads=8, num_kv_heads=2, head_dim=64, mlp_dim=2048)
    config.model.update(sizes, num_layers=LAYERS, dtype="bfloat16", **changes)
    config.sft.steps, config.rollout.slots, config.workdir = 0, 64, "/nowhere"
    settings = read_settings(config.to_dict())
    task = SimpleNamespace(
        reward="math",
        processor=None,
        tokenizer=SimpleNamespace(vocab_size=32_000, eos_ids=(0,), end_ids=(0,), decode=None),
        row_tokens=1024,
        max_completion_tokens=512,
        max_drawn_tokens=512,
    )
    programs = rollout_programs(settings, task, layout_on(settings, "explorer", devices))
    return next(one for one in programs if one.name == "decode")


@pytest.mark.aot
@pytest.mark.parametrize("chip", ["h100:1", "l4:1"])
def test_a_layer_of_a_decode_step_has_four_products_attention_and_three_kernels(chip, devices):
    read = CompiledProgramText.of(_decode(devices(chip)).compile())
    found = kernels_of_token(read, LAYERS)
    each = {name: count / LAYERS for name, count in found.of_layers.items()}
    assert (each.pop("products"), each.pop("attend_new")) == (4, 1)
    assert found.of_layer <= 8
    assert found.besides < 40


@pytest.mark.aot
def test_a_step_of_decoding_is_one_cuda_graph(devices, tmp_path):
    """The driver does not start kernels one by one: the loop over steps holds one graph alone."""
    devices("h100:1")
    program = (
        "import jax; jax.config.update('jax_platforms', 'cpu');"
        f"from {__name__} import _decode; from rl_sync.plan.targets import target;"
        "_decode(target('h100:1').devices()).compile()"
    )
    variables = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path}", "JAX_PLATFORMS": "cpu"}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", program], check=True, env=variables, timeout=600)
    (path,) = tmp_path.glob("*decode_chunk*.thunk_sequence_after_thunk_passes.txt")
    body = path.read_text().partition("  body:\n")[2].splitlines()
    outer = [line.split()[1] for line in body if re.match(r"    \d+: ", line)]
    assert outer == ["kCommandBuffer"], outer
