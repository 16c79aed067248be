"""Programs of long rows, as compiled for TPUs and GPUs: none holds an array of [T, T]."""

import math
import types

import pytest

from rl_sync.configs import base
from rl_sync.plan import lowered_programs
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.settings.config_reading import read_settings

pytestmark = pytest.mark.aot

T = 2048
SPLASH = {"tpu_custom_call"}
CUDNN = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
TRITON = {"__gpu$xla.gpu.triton"}
TASK = types.SimpleNamespace(
    reward="math",
    processor=None,
    tokenizer=types.SimpleNamespace(vocab_size=1000, eos_ids=(0,), end_ids=(0,), decode=None),
    row_tokens=T,
    max_completion_tokens=T // 2,
    max_drawn_tokens=T // 2,
)


def _settings(batching, tensor, dtype, remat):
    config = base.get_config()
    config.workdir = "/nowhere"
    config.sft.steps = 0
    config.sync.mode = "synchronous"
    config.algorithm.name = "grpo"
    config.trainer.update(dict(group_size=4, groups_per_step=1, batching=batching))
    config.optimizer.updates_per_batch = 1
    config.trainer.mesh.update(dict(fsdp=4 // tensor, tensor=tensor))
    config.explorer.mesh.update(dict(data=2, tensor=2))
    config.model.update(
        dict(embed_dim=128, num_heads=4, num_kv_heads=2, head_dim=64, mlp_dim=256, remat=remat)
    )
    config.model.dtype = dtype
    return read_settings(config.to_dict())


def _read(name, batching, on, dtype="bfloat16", remat="full"):
    # With padded rows and tensor=2 the step takes minutes to compile for a GPU.
    settings = _settings(batching, 2 if on[0].platform == "tpu" else 1, dtype, remat)
    if name == "step":
        program = lowered_programs.train_step(
            settings, TASK, lowered_programs.layout_on(settings, "trainer", on)
        )
    else:
        layout = lowered_programs.layout_on(settings, "explorer", on)
        found = lowered_programs.rollout_programs(settings, TASK, layout, rows=4, prompts=(4, T))
        (program,) = (one for one in found if one.name == name)
    return CompiledProgramText.of(program.compile())


@pytest.mark.parametrize(
    ("name", "batching", "target", "kernels"),
    [
        ("step", "packed", "v5e:2x2", SPLASH),
        ("prefill", "padded", "v5e:2x2", SPLASH),
        pytest.param("step", "padded", "h100:4", CUDNN, marks=pytest.mark.nightly),
        pytest.param("step", "packed", "h100:4", TRITON, marks=pytest.mark.nightly),
        ("prefill", "padded", "h100:4", {"__cudnn$fmhaSoftmax"}),
    ],
)
def test_a_kernel_attends_and_no_array_has_the_scores_of_a_row(
    name, batching, target, kernels, devices
):
    read = _read(name, batching, devices(target))
    assert kernels <= read.kernels
    # No other array of these programs is as large, on a device with one row or two, except the
    # bytes with which cuBLAS works.
    made = [
        (math.prod(x.sizes), one.line)
        for one in read.operations
        for x in one.shapes
        if x.dtype != "s8"
    ]
    assert made
    assert not [line for size, line in made if size >= T * T]


@pytest.mark.parametrize(
    ("target", "kernel", "remat", "count"),
    [
        ("h100:4", '"__cudnn$fmhaSoftmax"', "attention", 2),
        pytest.param("h100:4", '"__cudnn$fmhaSoftmax"', "full", 3, marks=pytest.mark.nightly),
        pytest.param("v5e:2x2", "splash_mqa_fwd", "attention", 2, marks=pytest.mark.nightly),
        pytest.param("v5e:2x2", "splash_mqa_fwd", "full", 3, marks=pytest.mark.nightly),
    ],
)
def test_results_of_attention_that_are_kept_are_not_computed_again(
    target, kernel, remat, count, devices
):
    read = _read("step", "padded", devices(target), remat=remat)
    calls = [one.line for one in read.operations if " custom-call(" in one.line]
    forward = [line for line in calls if kernel in line]
    assert len(forward) == count, "in the reference's pass, the forward pass, and perhaps again"


@pytest.mark.parametrize(
    ("name", "batching", "dtype"),
    [
        ("prefill", "padded", "float16"),
        pytest.param("step", "packed", "float16", marks=pytest.mark.nightly),
        pytest.param("step", "padded", "bfloat16", marks=pytest.mark.nightly),
    ],
)
def test_a_gpu_without_flash_units_gets_no_kernel_that_needs_them(name, batching, dtype, devices):
    read = _read(name, batching, devices("t4:4"), dtype)
    assert not [kernel for kernel in read.kernels if "fmha" in kernel or "triton" in kernel]
    assert read.kernels  # Products are cuBLAS's.
