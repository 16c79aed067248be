"""Steps whose positions or experts are cut over devices, compiled."""

import re
import types
from pathlib import Path

import pytest

from rl_sync.configs import base
from rl_sync.models import blocks
from rl_sync.plan import lowered_programs
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.targets import target
from rl_sync.settings.config_reading import read_settings

pytestmark = pytest.mark.aot

MIXTURE = Path(__file__).parents[2] / "data" / "models" / "qwen3_moe"
LAYERS, EXPERTS = 6, 8


def compiled(chips, devices, row_tokens, mesh, **model):
    config = base.get_config()
    config.workdir = "/nowhere"
    config.sft.steps = 0
    config.algorithm.name = "grpo"
    config.optimizer.updates_per_batch = 1
    config.trainer.update(dict(group_size=4, groups_per_step=1, microbatch_rows=4))
    config.trainer.mesh.update(mesh)
    config.model.update(dict(dtype="bfloat16", remat="full", **model))
    task = types.SimpleNamespace(
        reward="math",
        processor=None,
        tokenizer=types.SimpleNamespace(vocab_size=64, eos_ids=(0,), end_ids=(0,), decode=None),
        row_tokens=row_tokens,
        max_completion_tokens=row_tokens // 2,
        max_drawn_tokens=row_tokens // 2,
    )
    settings = read_settings(config.to_dict())
    layout = lowered_programs.layout_on(settings, "trainer", devices(chips))
    read = CompiledProgramText.of(lowered_programs.train_step(settings, task, layout).compile())
    return read, step_estimate(settings, task, target(chips).chip.platform)


@pytest.mark.nightly
@pytest.mark.parametrize("chips", ["v5e:2x2", "h100:4"])
def test_keys_are_gathered_once_a_pass_and_not_for_each_block_of_queries(chips, devices):
    model = dict(embed_dim=512, num_layers=LAYERS, num_heads=8, num_kv_heads=2, head_dim=64)
    read, planned = compiled(chips, devices, 8192, {"context": 4}, mlp_dim=2048, **model)
    gathers = [one for one in read.collectives if one.kind == "all-gather"]
    whole = [one for one in gathers if any({4, 2048} <= {*shape.sizes} for shape in one.shapes)]
    assert whole, "of keys and values"
    # Blocks would be a loop within the one over layers.
    assert all(len(one.loops) <= 1 for one in whole)
    # Each device has a mask of its own.
    assert ("splash" in read.text) == chips.startswith("v5e")
    # `plan` has a kernel in mind, and elsewhere are blocks of scores.
    assert read.memory.peak < 1.1 * planned.peak + 4 * blocks._SCORES_BYTES


@pytest.mark.parametrize("chips", ["v5e:2x2", pytest.param("h100:4", marks=pytest.mark.nightly)])
def test_tokens_travel_to_experts_whose_kernels_stay(chips, devices):
    read, _ = compiled(chips, devices, 256, {"experts": 2, "tensor": 2}, path=str(MIXTURE))
    assert "ragged-all-to-all" in read.text or re.search("all-to-all", read.text)
    for one in read.collectives:
        if one.kind == "all-gather":
            assert not any(shape.sizes[:1] == (EXPERTS,) for shape in one.shapes), one
