"""The trainer sees what the explorer saw, in every layout of its rows, and its tower learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching, lay_out
from rl_sync.learning.rows.row_images import in_parts, tile_places
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Demonstrations, Group, RowImages
from tests.models import tiny
from tests.models.meshes import engine_layout, layout
from tests.roles.trainer.training import comparable, state_of, trainer_of
from tests.rollout.pictures import CONFIG, VISION, pictured

T, G = 24, 4
MODEL = dataclasses.replace(CONFIG, max_length=T)
# The third has no image; the first and the last differ in their images alone.
PROMPTS = [
    pictured(1, [3, 4]),
    pictured([5, 2], 2, [7], 1, [8]),
    pictured([9]),
    pictured(5, [3, 4]),
]
KINDS = ["padded", "bucketed", "packed", "shared"]


@functools.cache
def params_of(seed=3):
    return tiny.params(MODEL, seed, spread=0.2)


@functools.cache
def groups_of(seed=0, sampler=8):
    """Groups that other weights drew, so that an image in another's place changes logprobs."""
    engine = Engine(MODEL, engine_layout(), EngineOptions(slots=8, chunk_tokens=5))
    engine.load(params_of(sampler), 0)
    requests = [
        CompletionRequest(ids, Sampling(8, (1,)), G, seed=(seed, i), images=images)
        for i, (ids, images) in enumerate(PROMPTS)
    ]
    random, groups = np.random.default_rng(0), []
    for (ids, images), found in zip(PROMPTS, engine.generate(requests), strict=True):
        columns = columns_of(found, ids, images=images)
        rewards = random.integers(0, 2, G).astype(np.float32)
        groups.append(Group(0, 0, 0, 1, rewards=rewards, **columns))
    return groups


def batching(kind, updates=1, part_rows=0, microbatch_rows=0):
    return Batching(
        kind, 16, T, updates, microbatch_rows, shared_row_tokens=32, vision=VISION,
        part_rows=part_rows,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def logprobs(forward, params, rows):
    return forward.logprobs(params, {}, RowInputs(rows.tokens, rows.packing, images=rows.images))


FORWARD = Forward(MODEL, 1.0, 1 << 20)


def of_tokens(rows, values):
    tokens, mask = np.asarray(rows.tokens), np.asarray(rows.completion_mask)
    return sorted(zip(tokens[mask].tolist(), np.asarray(values)[mask].tolist(), strict=True))


@pytest.mark.gate
def test_logprobs_are_those_of_the_explorer():
    rows = batching("padded").batch(groups_of(sampler=3)).rows
    gap = np.abs(logprobs(FORWARD, params_of(3), rows) - rows.behavior_logprobs)
    assert gap[rows.completion_mask].max() < 1e-5
    blind = logprobs(FORWARD, params_of(3), rows._replace(images=None))
    assert np.abs(blind - rows.behavior_logprobs)[rows.completion_mask].max() > 0.05


@pytest.mark.nightly
@pytest.mark.samples("shared")
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_keeps_the_images_of_each_row(kind):
    padded = batching("padded").batch(groups_of()).rows
    rows = batching(kind).batch(groups_of()).rows
    expected = of_tokens(padded, logprobs(FORWARD, params_of(), padded))
    found = of_tokens(rows, logprobs(FORWARD, params_of(), rows))
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.gate
def test_a_prompt_is_shared_only_by_completions_that_show_its_images():
    rows = batching("shared").batch(groups_of()).rows
    copies = {
        (int(row), int(copy))
        for row, of_row in enumerate(np.asarray(rows.packing.prompts.copies))
        for copy in set(of_row[of_row >= 0].tolist())
    }
    firsts = {copy // G for _, copy in copies}
    assert firsts == {0, 1, 2, 3}, "the first and the last prompt have the same tokens"


@functools.cache
def step(kind, updates=1, microbatch_rows=0, on=None, trains_tower=True, **optimizer):
    trainer = trainer_of(
        model=MODEL,
        optimizer={
            "name": "sgd", "b1": 0.0, "learning_rate": 0.1, "updates_per_batch": updates,
            **optimizer,
        },
        max_completion_tokens=8,
        microbatch_rows=microbatch_rows,
        trains_tower=trains_tower,
        **({} if on is None else {"layout": on}),
    )  # fmt: skip
    batch = batching(kind, updates, microbatch_rows, microbatch_rows).batch(groups_of())
    state, metrics = trainer.step(
        state_of(trainer, jax.tree.map(jnp.copy, params_of())), trainer.place(batch)
    )
    return jax.device_get(state.params), jax.device_get(comparable(metrics, batch))


def assert_equal_steps(found, expected, atol=1e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), found[0], expected[0])
    assert np.isclose(found[1]["loss"], expected[1]["loss"], atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_a_step_learns_the_same_in_every_layout(kind):
    assert_equal_steps(step(kind, updates=2), step("padded", updates=2))


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "rows"), [("padded", 2), ("padded", 8), ("packed", 1)])
def test_microbatches_learn_the_same_as_all_rows_at_once(kind, rows):
    assert_equal_steps(step(kind, microbatch_rows=rows), step(kind))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh",
    [{"data": 4}, {"fsdp": 2, "tensor": 2}, {"context": 4}, {"context": 2, "fsdp": 2}],
)
def test_a_step_on_a_mesh_learns_the_same(mesh):
    on = layout(**mesh).grouped(MODEL.num_kv_heads)
    found = step("padded", microbatch_rows=8, on=on)
    assert_equal_steps(found, step("padded", microbatch_rows=8), atol=2e-4)


def changes(found):
    before = jax.device_get(params_of())
    return jax.tree.map(lambda a, b: float(np.abs(a - b).max()), found[0], before)


@pytest.mark.nightly
def test_a_tower_learns_unless_it_is_frozen_and_by_its_own_rate():
    learned, frozen = changes(step("padded")), changes(step("padded", trains_tower=False))
    slow = changes(step("padded", tower_share=0.5))
    fast, half = learned["vision"]["tower"], slow["vision"]["tower"]
    assert min(jax.tree.leaves(fast)) > 0
    assert max(jax.tree.leaves(frozen["vision"]["tower"])) == 0
    assert frozen["vision"]["projector"]["kernel"] > 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(b, a / 2, rtol=1e-2, atol=1e-7), fast, half
    )
    assert np.isclose(slow["blocks"]["mlp"]["down"], learned["blocks"]["mlp"]["down"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("adamw", {"fsdp": 2, "tensor": 2}), ("adafactor", {}), ("lion", {"fsdp": 2, "tensor": 2})],
)
def test_a_frozen_tower_has_no_part_in_the_optimizer_s_state(name, mesh):
    on = layout(**mesh).grouped(MODEL.num_kv_heads)
    adaptive = {"name": name, "b1": 0.9, "learning_rate": 0.01}
    found, whole = (
        step("padded", trains_tower=False, tower_share=share, on=on, **adaptive)
        for share in (0.0, 1.0)
    )
    assert_equal_steps(found, whole, atol=1e-6)
    trainers = [
        trainer_of(model=MODEL, optimizer={**adaptive, "tower_share": share}, layout=on)
        for share in (0.0, 1.0)
    ]
    with_tower = [
        any("tower" in jax.tree_util.keystr(path) for path, _ in leaves)
        for leaves in (jax.tree.leaves_with_path(one.abstract().opt_state) for one in trainers)
    ]
    assert with_tower == [False, True]


@pytest.mark.nightly
@pytest.mark.samples(gate=("packed",))
@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
def test_demonstrations_are_learned_with_their_images(kind):
    rows = batching("padded").batch(groups_of()).rows
    tiles, at = rows.images
    drawn = Demonstrations(rows.tokens, rows.completion_mask, images=RowImages(tiles, at))
    losses = []
    for shown in (drawn, drawn._replace(images=None)):
        laid_out = lay_out(shown, kind, VISION)
        trainer = trainer_of(model=MODEL, trains_tower=True)
        begun = trainer.start(jax.tree.map(jnp.copy, params_of()))
        losses.append(float(trainer.sft_step(begun, *laid_out)[1]["loss"]))
    mask = rows.completion_mask
    expected = -np.mean(np.asarray(logprobs(FORWARD, params_of(), rows))[mask])
    assert np.isclose(losses[0], expected, atol=1e-5)
    assert abs(losses[1] - expected) > 1e-3


def test_each_part_of_the_rows_has_its_own_tiles_once():
    tiles = np.arange(4, dtype=np.uint8)[:, None, None, None] + np.zeros((4, 8, 8, 3), np.uint8)
    at = np.full((4, 6), -1, np.int32)
    at[0, 1:5], at[1, :4], at[3, 2:6] = np.arange(12, 16), np.arange(12, 16), np.arange(4, 8)
    found = in_parts(VISION, tiles, at, parts=2)
    assert found.tiles[:, 0, 0, 0].tolist() == [3, 1]
    assert found.at[0].tolist() == [-1, 0, 1, 2, 3, -1]
    assert found.at[1].tolist() == [0, 1, 2, 3, -1, -1]
    assert found.at[3].tolist() == [-1, -1, 0, 1, 2, 3]
    assert in_parts(VISION, tiles, np.full((4, 6), -1), parts=2) is None


def test_places_for_tiles_grow_in_few_sizes():
    assert [tile_places(n) for n in (1, 2, 3, 4, 5, 6, 7, 9, 13)] == [1, 2, 3, 4, 6, 6, 8, 12, 16]
    # Each device has equally many places, so none encodes the tiles of others.
    assert [tile_places(n, 3) for n in (1, 3, 4, 9, 12, 13)] == [3, 3, 6, 9, 12, 18]


@pytest.mark.nightly
def test_a_group_with_images_passes_through_the_columns_of_a_replay_item():
    (group, *_, text) = groups_of()[0], groups_of()[2]
    again = Group.from_columns(group.to_columns())
    assert np.array_equal(again.image_at, group.image_at)
    assert np.array_equal(again.tiles, group.tiles)
    assert np.array_equal(again.tile_digests, group.tile_digests)
    assert "tiles" not in text.to_columns()
    assert len({digest.tobytes() for one in groups_of() if one.tiles is not None
                for digest in one.tile_digests}) == 3  # fmt: skip


@pytest.mark.gate
def test_a_batch_without_images_is_that_of_a_policy_that_reads_text():
    text = [groups_of()[2]] * 4
    assert batching("padded").batch(text).rows.images is None
    blind = dataclasses.replace(batching("padded"), vision=None)
    jax.tree.map(np.testing.assert_array_equal, batching("padded").batch(text), blind.batch(text))
    assert jnp.asarray(blind.batch(text).rows.tokens).shape == (16, T)


def featured(groups, params):
    """Replaces pixels by features, as an explorer does with a frozen tower."""
    engine = Engine(MODEL, engine_layout(), EngineOptions(slots=8, frozen_vision=True))
    engine.load(params, 0)
    return [
        dataclasses.replace(group, tiles=None if images is None else engine.features(images))
        for group, (_, images) in zip(groups, PROMPTS, strict=True)
    ]


@pytest.mark.nightly
@pytest.mark.samples("shared")
@pytest.mark.parametrize("kind", KINDS)
def test_features_in_place_of_pixels_give_the_same_logprobs(kind):
    rows = batching(kind, updates=2).batch(groups_of()).rows
    other = batching(kind, updates=2).batch(featured(groups_of(), params_of())).rows
    assert other.images.tiles.ndim == 3
    forward = dataclasses.replace(FORWARD, trains_tower=False)
    one, two = (row._replace(images=first(row.images)) for row in (rows, other))
    np.testing.assert_allclose(
        logprobs(forward, params_of(), first_half(one)),
        logprobs(forward, params_of(), first_half(two)),
        atol=1e-6,
    )


def first(images):
    """Returns the images of the first of two updates."""
    half = len(images.tiles) // 2
    return RowImages(images.tiles[:half], images.at)


def first_half(rows):
    half = len(rows.tokens) // 2
    images = RowImages(rows.images.tiles, rows.images.at[:half])
    cut = jax.tree.map(lambda x: x[:half], rows._replace(images=None))
    return cut._replace(images=images)
