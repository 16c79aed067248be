"""The trainer's step as compiled for TPUs and GPUs: its state, its dtypes, its gathers."""

import math
import re
import types

import jax
import pytest

from rl_sync.configs import base
from rl_sync.plan import lowered_programs
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.targets import target
from rl_sync.settings.config_reading import read_settings

pytestmark = pytest.mark.aot

LAYERS = 6
TASK = types.SimpleNamespace(
    reward="math",
    processor=None,
    tokenizer=types.SimpleNamespace(vocab_size=4096, eos_ids=(0,), end_ids=(0,), decode=None),
    row_tokens=256,
    max_completion_tokens=128,
    max_drawn_tokens=128,
)


def settings_of(data=1, fsdp=4, updates=1, embed_dim=512, **trainer):
    config = base.get_config()
    config.workdir = "/nowhere"
    config.sft.steps = 0
    config.algorithm.name = "grpo"
    config.optimizer.updates_per_batch = updates
    sizes = {"group_size": 4, "groups_per_step": 4, "microbatch_rows": 8} | trainer
    config.trainer.update(sizes)
    config.trainer.mesh.update(dict(data=data, fsdp=fsdp))
    config.model.update(
        dict(embed_dim=embed_dim, num_layers=LAYERS, num_heads=8, num_kv_heads=2, head_dim=64)
    )
    config.model.update(dict(mlp_dim=2048, dtype="bfloat16", remat="full"))
    return read_settings(config.to_dict())


def step_on(devices, data=1, **fields):
    settings = settings_of(data, **fields)
    return lowered_programs.train_step(
        settings, TASK, lowered_programs.layout_on(settings, "trainer", devices)
    )


@pytest.fixture(scope="module", params=["v5e:2x2", "h100:4"])
def lowered(request, devices):
    return step_on(devices(request.param)).lower()


@pytest.fixture(scope="module")
def read(lowered):
    return CompiledProgramText.of(lowered.compile())


def test_the_state_is_updated_in_place(lowered, read):
    state = jax.tree.leaves(lowered.args_info[0][0])
    assert all(leaf.donated for leaf in state)
    assert read.aliases >= len(state)
    assert read.memory.outputs - read.memory.aliased < 1e6


def test_its_memory_is_that_estimated_from_shapes(request, read):
    name = request.node.callspec.params["lowered"]
    planned = step_estimate(settings_of(), TASK, target(name).chip.platform)
    assert planned.peak == pytest.approx(read.memory.peak, rel=0.15)


@pytest.mark.nightly
def test_a_loop_over_updates_copies_neither_parameters_nor_moments(devices):
    one, several = (
        CompiledProgramText.of(
            # A shard's width of 224 is no multiple of 128, so its rows are innermost.
            step_on(devices("v5e:2x2"), updates=updates, embed_dim=896, microbatch_rows=4)
            .lower()
            .compile()
        )
        for updates in (1, 2)
    )
    assert several.memory.peak < 0.97 * one.memory.peak  # 1.01 with the copies


def test_large_products_read_the_dtype_of_the_computation(lowered):
    products = re.findall(
        r"stablehlo\.dot_general.*: \(tensor<([\dx]+)x(\w+)>, tensor<([\dx]+)x(\w+)>\)",
        lowered.as_text(),
    )
    kernels = [(a, b) for one, a, other, b in products if _size(other) > 512 * 512]
    assert len(kernels) > 4
    assert {dtype for pair in kernels for dtype in pair} == {"bf16"}


@pytest.mark.nightly
def test_what_is_offloaded_is_in_host_memory_while_gradients_are_computed(devices):
    """The target's devices must say which memories they have, as those of GPUs do not."""
    of = devices("v5e:2x2")
    plain = CompiledProgramText.of(step_on(of).compile())
    step = step_on(of, offload_reference=True, offload_optimizer=True).lower()
    found = CompiledProgramText.of(step.compile())
    abstract = step.args_info[0][0]
    parts = jax.tree.leaves((abstract.opt_state, abstract.ref_params))
    arrays = [leaf for leaf in parts if leaf.shape]
    layout = next(line for line in found.text.splitlines() if "entry_computation_layout" in line)
    assert layout.count("S(5)") == 2 * len(arrays), "as arguments and as results"
    size = sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in arrays) / 4
    assert found.memory.hosted == pytest.approx(size, rel=0.02)
    assert plain.memory.arguments - found.memory.arguments == pytest.approx(size, rel=0.02)
    assert plain.memory.peak - found.memory.peak > 0.85 * size


def _size(text):
    count = 1
    for size in text.split("x"):
        count *= int(size)
    return count


def test_nothing_is_float64_and_nothing_calls_the_host(read):
    assert "f64[" not in read.text
    assert not [kernel for kernel in read.kernels if "callback" in kernel or "host" in kernel]


def test_parameters_are_gathered_layer_by_layer_beside_the_computation(read):
    inside = [one for one in read.collectives if one.kind == "all-gather" and LAYERS in one.loops]
    of_layer = [one for one in inside if one.bytes >= 512 * 512]
    assert of_layer
    # No layer's gather brings the kernels of all.
    assert max(one.bytes for one in of_layer) < 2 * 2 * 512 * 2 * 2048
    hidden = sum(one.bytes for one in of_layer if one.asynchronous)
    assert hidden >= sum(one.bytes for one in of_layer) / 2
