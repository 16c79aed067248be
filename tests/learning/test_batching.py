import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.learning.learning_settings import MIXED
from rl_sync.learning.rows.batching import (
    Batching,
    ExpectedImages,
    demonstration_batching,
    lay_out,
)
from rl_sync.learning.rows.row_layout import PADDING, first_fit_decreasing
from rl_sync.models.vision.vision_config import Vision
from rl_sync.types import Demonstrations, Group, RowImages

T = 32
FIELDS = ("tokens", "completion_mask", "behavior_logprobs", "policy_versions")


def _group(lengths):
    """Makes trajectories of given lengths, with one prompt token each; tokens are numbers."""
    rows, position = len(lengths), np.arange(T)
    filled = position < np.asarray(lengths)[:, None]
    number = np.arange(rows * T, dtype=np.int32).reshape(rows, T) + 1
    mask = filled & (position > 0)
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=1,
        tokens=np.where(filled, number, 0),
        completion_mask=mask,
        behavior_logprobs=np.where(mask, -number.astype(np.float32), 0),
        policy_versions=np.where(mask, number % 7, -1),
        rewards=np.arange(rows, dtype=np.float32),
    )


def test_first_fit_decreasing_puts_the_longest_first_and_each_where_there_is_room():
    row, start = first_fit_decreasing(np.array([3, 8, 2, 5, 5]), 10)
    np.testing.assert_array_equal(row, [2, 0, 0, 1, 1])
    np.testing.assert_array_equal(start, [0, 0, 8, 0, 5])


@given(st.lists(st.integers(0, 10), min_size=1, max_size=30))
def test_packed_trajectories_stay_within_their_rows_and_do_not_overlap(lengths):
    row, start = first_fit_decreasing(np.array(lengths), 10)
    taken = {(r, s + i) for r, s, n in zip(row, start, lengths, strict=True) for i in range(n)}
    assert len(taken) == sum(lengths)
    assert all(0 <= position < 10 for _, position in taken)
    assert row.max() < len(lengths)


def test_packed_trajectories_begin_at_multiples_of_an_alignment():
    group = _group([5, 3, 8, 4])
    batch = Batching("packed", 4, T, 1, 0, aligned=4).batch([group])
    numbers = np.asarray(batch.rows.packing.trajectories)
    tokens = np.asarray(batch.rows.tokens)
    for number in range(4):
        row, place = np.nonzero(numbers == number)
        assert place[0] % 4 == 0
        np.testing.assert_array_equal(tokens[row, place], group.tokens[number][: len(place)])
        assert len(place) == (5, 3, 8, 4)[number]


def test_a_batch_says_what_was_cut_where_tokens_do_not():
    group = dataclasses.replace(_group([4, 5]), truncated=np.array([False, True]))
    says = Batching("packed", 4, T, 1, 0, with_truncated=True)
    assert says.batch([group, group]).truncated.tolist() == [False, True] * 2
    assert says.largest().truncated.shape == (4,)
    assert Batching("packed", 4, T, 1, 0).batch([group, group]).truncated is None


@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
def test_a_batch_numbers_the_seats_of_each_set(kind):
    """Problem 0 and 2 are of one set; a game that did not begin has no seats."""
    numbers = [(0, [1, 1]), (1, [1, 1]), (2, None), (2, [1, 1])]
    groups = [
        dataclasses.replace(
            _group([4, 5]), prompt_id=prompt, seats=None if seats is None else np.array(seats)
        )
        for prompt, seats in numbers
    ]
    with_roles = Batching(kind, 8, T, 1, 0, sets=(4, 7, 4))
    roles = with_roles.batch(groups).roles
    assert roles.tolist() == [1, 1, 2, 2, 0, 0, 1, 1]
    assert (roles.dtype, roles.shape) == (np.int32, with_roles.largest().roles.shape)
    assert Batching(kind, 8, T, 1, 0).batch(groups).roles is None


@pytest.mark.parametrize("updates", [1, 2])
def test_packing_loses_no_token_and_keeps_what_belongs_to_it(updates):
    lengths = [32, 3, 5, 9, 2, 17, 4, 12]
    group = _group(lengths)
    batch = Batching("packed", 8, T, updates, 0).batch([group])
    belongs = np.asarray(batch.rows.packing.trajectories)
    for i, length in enumerate(lengths):
        there = belongs == i
        np.testing.assert_array_equal(batch.rows.packing.positions[there], np.arange(length))
        for name in FIELDS:
            np.testing.assert_array_equal(
                getattr(batch.rows, name)[there], getattr(group, name)[i, :length], err_msg=name
            )
    padding = belongs == -1
    assert not np.asarray(batch.rows.completion_mask)[padding].any()
    assert (np.asarray(batch.rows.tokens)[padding] == 0).all()
    assert (np.asarray(batch.rows.policy_versions)[padding] == -1).all()
    np.testing.assert_array_equal(batch.rewards, group.rewards)


def test_each_update_has_its_own_trajectories_in_equally_many_rows():
    batch = Batching("packed", 8, T, 2, 0).batch([_group([2] * 4 + [30] * 4)])
    first, second = np.split(np.asarray(batch.rows.packing.trajectories), 2)
    assert set(first.ravel()) == {-1, 0, 1, 2, 3}
    assert set(second.ravel()) == {-1, 4, 5, 6, 7}
    assert len(first) == len(second) == 4


@pytest.mark.parametrize(
    ("longest", "width"), [(2, 8), (8, 8), (9, 16), (16, 16), (17, 24), (25, 32), (32, 32)]
)
def test_bucketed_rows_are_as_long_as_the_bucket_of_the_longest(longest, width):
    group = _group([longest, 1, 2, 2])
    batch = Batching("bucketed", 4, T, 1, 0).batch([group])
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(batch.rows, name), getattr(group, name)[:, :width])
    assert batch.rows.packing is None


def test_what_stands_behind_a_completion_takes_no_room():
    group = _group([20, 3])
    mask = group.completion_mask & (np.arange(T) < 8)
    group = dataclasses.replace(group, completion_mask=mask)
    assert Batching("bucketed", 2, T, 1, 0).batch([group]).rows.tokens.shape == (2, 8)


def test_padded_rows_are_those_of_the_groups():
    groups = [_group([5, 7]), _group([2, 32])]
    batch = Batching("padded", 4, T, 1, 0).batch(groups)
    for name in FIELDS:
        stacked = np.concatenate([getattr(group, name) for group in groups])
        np.testing.assert_array_equal(getattr(batch.rows, name), stacked)
    np.testing.assert_array_equal(batch.rewards, [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("lengths", "microbatch_rows", "rows"),
    [([4] * 40, 0, 5), ([4] * 40, 4, 8), ([20] * 40, 0, 40), ([20] * 40, 16, 48)],
)
def test_packed_batches_have_few_numbers_of_rows_all_of_whole_microbatches(
    lengths, microbatch_rows, rows
):
    batch = Batching("packed", 40, T, 1, microbatch_rows).batch([_group(lengths)])
    assert batch.rows.tokens.shape == (rows, T)


@pytest.mark.parametrize(
    ("microbatch_rows", "row_shards", "rows"),
    [(0, 1, 1), (8, 1, 1), (8, 2, 2), (1, 1, 1), (2, 2, 2), (8, 8, 8)],
)
def test_shared_rows_that_one_microbatch_holds_are_as_few_as_the_devices_can_share(
    microbatch_rows, row_shards, rows
):
    """Otherwise short completions would be computed in rows of nothing."""
    batching = Batching("shared", 32, T, 4, microbatch_rows, row_shards, shared_row_tokens=256)
    batch = batching.batch([_group([12] * 32)])
    assert batch.rows.tokens.shape[0] == 4 * rows


@pytest.mark.parametrize("seed", range(20))
def test_shared_rows_of_any_size_keep_each_token_and_can_be_cut(seed):
    """Rows of an update divide by the devices, and by the microbatch if they are more."""
    draw = np.random.default_rng(seed)
    updates, shards = int(draw.choice([1, 2, 4])), int(draw.choice([1, 2, 4]))
    count, longest = updates * int(draw.integers(1, 17)), int(draw.choice([8, 32, 300]))
    microbatch = shards * int(draw.choice([0, 1, 3, 16]))
    group = _group(draw.integers(2, T + 1, count).tolist())
    batching = Batching(
        "shared", count, T, updates, microbatch, shards, shared_row_tokens=longest + T
    )
    batch = batching.batch([group])
    assert batch.rows.completion_mask.sum() == group.completion_mask.sum()
    rows = batch.rows.tokens.shape[0] / updates
    assert rows % shards == 0
    assert not microbatch or rows < microbatch or rows % microbatch == 0


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
def test_the_largest_batch_is_that_of_the_longest_trajectories(kind):
    batching = Batching(kind, 8, T, 2, 4)
    # Of the prompts, which have one token, the largest batch has but one.
    group = _group([T] * 8)
    group.tokens[:, 0] = 1
    batch = batching.batch([group])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), batching.largest())
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), batch)


def test_scores_by_parts_stand_beside_rewards_where_the_reward_has_several():
    groups = [
        dataclasses.replace(_group([3, 5]), parts=np.full((2, 3), value, np.float32))
        for value in (0.5, 1.0)
    ]
    batching = Batching("packed", 4, T, 1, 0, parts=3)
    batch = batching.batch(groups)
    np.testing.assert_array_equal(batch.parts, np.repeat([[0.5] * 3, [1.0] * 3], 2, axis=0))
    assert (batching.largest().parts.shape, batching.largest().parts.dtype) == ((4, 3), np.float32)
    assert Batching("packed", 4, T, 1, 0).batch(groups).parts is None


def test_baselines_stand_beside_rewards_where_groups_have_them():
    groups = [
        dataclasses.replace(_group([3, 5]), baselines=np.full(2, value, np.float32))
        for value in (0.5, 1.0)
    ]
    batching = Batching("padded", 4, T, 1, 0, with_baselines=True)
    batch = batching.batch(groups)
    np.testing.assert_array_equal(batch.baselines, [0.5, 0.5, 1.0, 1.0])
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batching.largest())]
    assert Batching("padded", 4, T, 1, 0).batch(groups).baselines is None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("padded", (8, T)), ("bucketed", (8, 16)), ("packed", (3, T)), ("shared", (1, 256))],
)
def test_demonstrations_are_laid_out_as_trajectories_are(kind, shape):
    group = _group([9, 9, 10, 8, 11, 7, 9, 9])
    laid_out = lay_out(Demonstrations(group.tokens, group.completion_mask), kind)
    assert laid_out.tokens.shape == laid_out.mask.shape == shape
    learned = group.tokens[group.completion_mask]
    assert sorted(laid_out.tokens[laid_out.mask]) == sorted(learned)
    assert (laid_out.packing is not None) == (kind in MIXED)


def _shapes(batch):
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
@pytest.mark.parametrize(("updates", "microbatch"), [(1, 0), (2, 3)])
def test_the_shapes_of_batches_are_known_before_there_is_one(kind, updates, microbatch):
    batching = Batching(kind, 12, T, updates, microbatch, shared_row_tokens=2 * T)
    lengths = [[long] * count + [2] * (12 - count) for long in range(2, T + 1) for count in (1, 12)]
    lengths += [[*[T] * (count // 2), *[2] * 6] * 2 for count in range(12)]
    found = {_shapes(batching.batch([_group((one * 12)[:12])])) for one in lengths}
    listed = {_shapes(batch) for batch in batching.shapes()}
    if kind == "shared":
        assert not listed
        assert len(found) <= batching.shape_count
    else:
        assert found == listed
        assert len(listed) == batching.shape_count


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed"])
def test_the_shapes_of_demonstrations_are_known_before_they_are_drawn(kind):
    listed = {_shapes(one) for one in demonstration_batching(kind, 6, T).demonstration_shapes()}
    found = set()
    for long in range(2, T + 1):
        for count in range(1, 7):
            lengths = np.array([long] * count + [2] * (6 - count))
            mask = np.arange(T) < lengths[:, None]
            drawn = Demonstrations(np.zeros((6, T), np.int32), mask & (np.arange(T) > 0))
            found.add(_shapes(lay_out(drawn, kind)))
    assert found == listed


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
def test_groups_whose_rows_are_shorter_make_the_same_batch(kind):
    whole = [_group([3, 5]), _group([2, 7])]
    cut = [
        dataclasses.replace(group, **{name: getattr(group, name)[:, :longest] for name in PADDING})
        for group, longest in zip(whole, (5, 7), strict=True)
    ]
    batching = Batching(kind, 4, T, 2, 0)
    jax.tree.map(np.testing.assert_array_equal, batching.placed(cut), batching.placed(whole))


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed"])
@pytest.mark.parametrize("features", [None, "bfloat16"])
def test_the_largest_batch_has_the_images_of_each_prompt(kind, features):
    vision = Vision(8, 4, 4, 1, 1, 4, tile_tokens=4, token_id=0)
    prompts, each, tiles = 4, 2, 3
    batching = Batching(
        *(kind, prompts * each, T, 2, 2),
        vision=vision,
        part_rows=2,
        shown=ExpectedImages(each, tiles, features),
    )
    of_tile, dtype = ((4, 4), jnp.bfloat16) if features else ((8, 8, 3), np.uint8)
    at = np.full((each, T), -1, np.int32)
    at[:, : 4 * tiles] = np.arange(4 * tiles)
    groups = [
        dataclasses.replace(
            _group([T] * each),
            image_at=at,
            tiles=np.zeros((tiles, *of_tile), dtype),
            tile_digests=np.arange(tiles * 16, dtype=np.uint8).reshape(-1, 16) + number,
        )
        for number in range(prompts)
    ]
    assert _shapes(batching.largest()) == _shapes(batching.batch(groups))
    assert batching.largest().rows.images.tiles.shape == (4 * tiles, *of_tile)


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed"])
def test_the_shapes_of_demonstrations_have_their_images(kind):
    vision = Vision(8, 4, 4, 1, 1, 4, tile_tokens=4, token_id=0)
    at = np.full((3, T), -1, np.int32)
    at[:, 2:10] = np.arange(24).reshape(3, 8)
    images = RowImages(np.zeros((6, 8, 8, 3), np.uint8), at)
    mask = np.broadcast_to(np.arange(T) > 9, (3, T))
    drawn = Demonstrations(np.zeros((3, T), np.int32), mask, images=images)
    batching = demonstration_batching(kind, 3, T, vision, tiles=2)
    largest = next(batching.demonstration_shapes())
    assert _shapes(largest) == _shapes(batching.demonstrations(drawn))
