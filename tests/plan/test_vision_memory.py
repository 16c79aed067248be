"""What `plan` says of images: what groups carry, and the memory of towers that encode them."""

from __future__ import annotations

import jax
import pytest

from rl_sync.models.vision.tower import TOWER, VISION
from rl_sync.plan.lowered_programs import layout_on, rollout_programs
from rl_sync.plan.memory import model_memory
from rl_sync.plan.memory.explorer_memory import (
    decode_estimate,
    explorer_estimate,
    image_features_estimate,
    prefill_estimate,
)
from rl_sync.plan.memory.memory_text import describe_images, describe_memory, format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import parameters_of
from tests.plan.test_memory_text import settings_with

pytestmark = pytest.mark.gate

SIDE, TOKENS, WIDTH = 16, 4, 32
PIXELS, FEATURES = 3 * SIDE**2, 4 * TOKENS * WIDTH


def seeing(**more):
    vision = {"image_size": SIDE, "tile_tokens": TOKENS, "embed_dim": WIDTH, "mlp_dim": 48}
    of_vision = {f"model__vision__{name}": value for name, value in vision.items()}
    of_task = {"task__name": "digits", "task__digits__side_pixels": SIDE}
    settings = settings_with(**of_task | of_vision | more)
    return settings, wiring.load_task(settings)


FROZEN = {"model__vision__trains_tower": False}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "as pixels, which the trainer's vision tower encodes"),
        (FROZEN, "as features, which the explorer's frozen vision tower has computed"),
        (
            {**FROZEN, "model__vision__embed_dim": 64},
            "as pixels, which are smaller than features",
        ),
    ],
)
def test_a_plan_says_what_groups_carry_of_images(more, said):
    settings, task = seeing(**more)
    (line,) = describe_images(settings, task)
    assert said in line
    assert line in describe_memory(settings, task)
    carries_features = "as features" in said
    assert carries_features == wiring.sends_features(settings, task)
    size = FEATURES if carries_features else PIXELS
    assert f" {format_bytes(size)} a tile (" in line
    batch = wiring.batching_of(settings, task).largest().rows.images
    of_tile = model_memory.tree_bytes(batch.tiles) // len(batch.tiles)
    assert of_tile == size


def test_a_plan_of_a_policy_that_reads_text_alone_says_nothing_of_images():
    settings = settings_with()
    assert describe_images(settings, wiring.load_task(settings)) == []


@pytest.mark.nightly
def test_an_explorer_that_sees_encodes_images_and_prefills_with_their_features():
    settings, task = seeing()
    layout = layout_on(settings, "explorer", jax.devices()[:1])
    programs = rollout_programs(settings, task, layout)
    assert [one.name for one in programs] == ["image_features", "prefill", "insert", "decode"]
    encode, prefill, *_ = programs
    rows, positions, tiles = prefill.sizes
    assert encode.sizes == (min(16, rows * tiles),)
    lowered = prefill.lower().as_text()
    assert f"tensor<{rows * tiles}x{TOKENS}x{WIDTH}xf32>" in lowered
    assert f"tensor<{rows}x{positions}xi32>" in lowered
    assert f"tensor<{encode.sizes[0]}x{SIDE}x{SIDE}x3xui8>" in encode.lower().as_text()


def test_an_explorer_s_programs_over_text_do_not_read_the_tower():
    settings, task = seeing()
    held = parameters_of(settings, task, settings.explorer_layout).abstract_held
    tower = model_memory.device_bytes(held[VISION][TOWER])
    whole = model_memory.device_bytes(held)
    for estimate, sizes in ((decode_estimate, (12, 32)), (prefill_estimate, (4, 32, 1))):
        assert estimate(settings, task, "tpu", sizes).held["parameters"] == whole - tower
    encoding = image_features_estimate(settings, task, "tpu", (8,))
    assert encoding.held == {"vision tower": tower}
    assert encoding.made["features of images"] == 8 * FEATURES
    assert explorer_estimate(settings, task, "tpu").held["parameters"] == whole


@pytest.mark.nightly
def test_a_trained_tower_keeps_activations_and_a_frozen_one_none():
    trained, task = seeing()
    (frozen, _), (sent, _) = seeing(**FROZEN, model__vision__embed_dim=64), seeing(**FROZEN)
    steps = [step_estimate(one, task, "tpu") for one in (trained, frozen, sent)]
    assert "the vision tower" in steps[0].work
    assert "the vision tower" in steps[1].work
    assert "the vision tower" not in steps[2].work
    tiles = len(wiring.batching_of(trained, task).largest().rows.images.tiles) // 2  # Two updates.
    kept = model_memory.tower_bytes(wiring.trainer_model(trained, task), tiles)
    assert kept > 0
    assert steps[0].made["activations"] == steps[2].made["activations"] + kept


def test_a_frozen_base_has_no_gradient_whose_inputs_are_kept():
    small = {"model__remat": "none", "model__tie_embeddings": False}
    plain, adapted = (
        step_estimate(settings, wiring.load_task(settings), "gpu")
        for settings in (
            settings_with(**small, trainer__logits_bytes=64),
            settings_with(**small, trainer__logits_bytes=64, model__lora__rank=1),
        )
    )
    # Scales of norms are frozen, so what they scale is kept in no other dtype or place.
    assert adapted.made["activations"] < plain.made["activations"]
    # No gradient of the output projection is summed.
    assert adapted.work["the logits"] < plain.work["the logits"] - 4 * 15 * 32


def test_devices_that_share_a_batch_share_its_tiles():
    one, two = (
        seeing(trainer__mesh__data=devices, trainer__groups_per_step=8) for devices in (1, 2)
    )
    whole, half = (step_estimate(*of, "tpu") for of in (one, two))
    assert half.work["the vision tower"] == whole.work["the vision tower"] / 2
    three = seeing(trainer__mesh__data=3, sft__batch_size=126)
    places = len(wiring.batching_of(*three).largest().rows.images.tiles)
    assert places == 2 * 3, "each of three devices has a place in each of two updates"
