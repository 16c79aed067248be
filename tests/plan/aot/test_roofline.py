"""Work of a trainer step, counted from shapes: operations, and bytes that devices exchange."""

import dataclasses

import pytest

from rl_sync.models.config import ModelConfig
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.sharding import Layout
from rl_sync.plan.chips import Rates
from rl_sync.plan.roofline import Work, decode_links, decode_work, step_links, step_work
from rl_sync.roles.assembly import wiring
from rl_sync.settings.mesh_settings import ShardingSettings
from tests.models.test_images_in_rows import VISION
from tests.plan.test_memory_text import ATTENTION, EMBED, MLP, settings_with

MODEL = ModelConfig(64, 32, 2, 4, 2, 8, 64, 16, dtype="bfloat16")
ROWS = (8, 16)
"""Rows of a batch, and their tokens."""


def layout(**mesh):
    return Layout(MeshShape(**mesh).abstract(), ShardingSettings().rules)


def links(model=MODEL, **mesh):
    # With a reference model: its pass, and the policy's forward and backward passes.
    return step_links(model, layout(**mesh), ROWS, microbatches=2, untrained=1)


def test_one_device_sends_nothing():
    assert links() == (0, 0)


def test_kernels_are_gathered_and_gradients_scattered_once_a_microbatch_and_hidden():
    alone, hidden = links(fsdp=2)
    # V·D, and L layers of D·(N + 2K)·H + N·H·D + 3·D·F and two norms of D, and a norm.
    count = 64 * 32 + 2 * (32 * 8 * 8 + 4 * 8 * 32 + 3 * 32 * 64 + 2 * 32) + 32
    # Half of each comes from the other device: three gathers in bfloat16, one scatter in float32.
    assert hidden == 2 * (3 * 2 + 4) * count / 2
    assert alone == 0


def test_passes_over_text_do_not_send_the_parameters_of_vision():
    seeing = dataclasses.replace(MODEL, vision=VISION)
    assert links(seeing, fsdp=2, data=2) == links(fsdp=2, data=2)


def test_sums_of_activations_are_waited_for():
    alone, hidden = links(tensor=2)
    # Two sums a block and pass, each way of a ring of two: 8 · 16 tokens of 32 bfloat16 numbers.
    assert alone == pytest.approx(3 * 2 * 2 * 8 * 16 * 32 * 2)
    assert hidden == 0


@pytest.mark.parametrize(
    ("heads", "exchanged"),
    [
        # Half of the group's queries in bfloat16, and half of the own results: 8 numbers and 2.
        (4, (2 * 8 * 2 + 2 * 10 * 4) / 2),
        # All three queries of a kv head are on both devices, which send all results.
        (6, 3 * 10 * 4),
    ],
)
def test_devices_that_divide_a_cache_exchange_what_they_attended_to(heads, exchanged):
    model = dataclasses.replace(MODEL, num_heads=heads)
    rows, layers = 8, 2
    # On the other axes of a ring of four: two sums a layer, and logits of two rows a device.
    others = (rows * 32 * 2 * 2 * layers * 2 + 2 * 64 * 4) * 3 / 4
    found = decode_links(model, layout(tensor=4), rows)
    assert found == others + rows * layers * exchanged


def test_decoding_reads_a_share_of_a_cache_that_devices_divide():
    def traffic(**mesh):
        settings = settings_with(**{f"explorer__mesh__{axis}": n for axis, n in mesh.items()})
        task = wiring.load_task(settings)
        one, all_rows = (decode_work(settings, task, rows, 8).traffic for rows in (0, 16))
        return all_rows - one

    assert traffic(tensor=4) == traffic() / 4


def step(**fields):
    settings = settings_with(**fields)
    return step_work(settings, wiring.load_task(settings))


def test_model_flops_are_six_a_token_and_parameter_and_those_of_attention():
    tokens = 12 * 10  # Trajectories, and tokens of each.
    # Scores and their products with values, of 4 heads of 8, for 5 tokens in the mean.
    attention = 3 * 2 * 2 * (4 * 8) * 5
    assert step().model_flops == tokens * (6 * (EMBED + ATTENTION + MLP) + attention)
    assert step(trainer__mesh__fsdp=2).model_flops == step().model_flops / 2


def test_the_backward_pass_of_a_frozen_base_has_no_gradient_of_its_parameters():
    attention = 3 * 2 * 2 * (4 * 8) * 5
    adapters = step(model__lora__rank=2)
    assert adapters.model_flops == 12 * 10 * (4 * (EMBED + ATTENTION + MLP) + attention)
    assert step().flops - adapters.flops == 12 * 10 * 2 * (EMBED + ATTENTION + MLP)
    assert adapters.traffic < step().traffic  # Only adapters have gradients and moments.


def test_passes_that_train_nothing_are_computed_and_do_not_count_for_mfu():
    plain = step(algorithm__name="grpo", algorithm__kl_coefficient=0.0, model__remat="none")
    reference = step(algorithm__name="grpo", algorithm__kl_coefficient=0.1, model__remat="none")
    again = step(algorithm__name="grpo", algorithm__kl_coefficient=0.1, model__remat="full")
    assert plain.model_flops == reference.model_flops == again.model_flops
    one = plain.model_flops / 3
    assert reference.flops - plain.flops == pytest.approx(one)
    assert again.flops - reference.flops == pytest.approx(one)


def test_mfu_is_model_flops_over_those_of_the_least_time():
    work = Work(flops=400.0, model_flops=300.0, traffic=0.0, links=20.0)
    # 4 s of computing and then 1 s of links, in which a device could do 500 operations.
    assert work.mfu(Rates(flops=100.0, bandwidth=1.0, link=20.0)) == 300 / 500
