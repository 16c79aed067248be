"""Memory on accelerators from shapes: parts that can be worked out by hand."""

import pytest

from rl_sync.plan.memory.explorer_memory import prefill_estimate
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.targets import target
from rl_sync.roles.assembly import wiring
from tests.plan.test_memory_text import PARAMETERS, settings_with

pytestmark = pytest.mark.gate


def step(**fields):
    settings = settings_with(**fields)
    return step_estimate(settings, wiring.load_task(settings), "tpu")


def test_a_microbatch_has_gradients_of_its_own_beside_the_sum():
    whole, parts = step(), step(trainer__microbatch_rows=6)
    assert whole.made == parts.made  # An update has 6 rows.
    assert parts.work["a block"] - whole.work["a block"] == PARAMETERS


def test_devices_along_tensor_divide_what_a_block_keeps():
    one, two = (
        step(trainer__mesh__fsdp=2, trainer__mesh__tensor=count, model__remat="none")
        for count in (1, 2)
    )
    assert one.made["activations"] / 2 < two.made["activations"] < 0.8 * one.made["activations"]
    assert two.made["gradients"] < 0.6 * one.made["gradients"]


def test_heads_that_are_no_part_of_a_line_are_padded_on_a_tpu():
    def of_prompts(platform, head_dim):
        settings = settings_with(model__head_dim=head_dim)
        task = wiring.load_task(settings)
        return prefill_estimate(settings, task, platform, (8, 16)).made.popitem()[1]

    assert of_prompts("tpu", 48) == pytest.approx(of_prompts("gpu", 48) * 128 / 48)
    assert of_prompts("tpu", 64) == of_prompts("gpu", 64)


def test_sets_that_tokens_were_drawn_from_take_a_bit_for_each_token_of_the_vocabulary():
    plain, masked = step(), step(rollout__top_p=0.9)
    assert "sampling masks" not in plain.made
    assert masked.made["batch"] > plain.made["batch"]
    assert masked.made["sampling masks"] > 0
    without = step(rollout__top_p=0.9, rollout__keep_sampling_mask=False)
    assert without.made == plain.made


def test_a_large_model_does_not_fit_a_small_chip():
    planned = step(model__embed_dim=8192, model__num_layers=32, model__mlp_dim=8192)
    assert planned.peak > target("v5e:1x1").chip.memory
