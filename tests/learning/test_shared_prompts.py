"""Rows of shared prompts are trained as rows of one trajectory each are."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.learning_settings import CriticConfig
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import Lora
from rl_sync.models.placement import move
from rl_sync.types import Group
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.training import TWICE, comparable, logprobs_of, trainer_of

T, WIDTH = 16, 24
PROMPTS = (5, 2, 1, 7)
COMPLETIONS = ((3, 6, 1, 9), (1, 1, 14, 2), (4, 4, 4, 4), (2, 9, 0, 5))
PLAIN = {"name": "sgd", "b1": 0.0, "learning_rate": 0.1}
"""An optimizer without Adam's first steps, which magnify the rounding of sums."""


def _groups(model=tiny.CONFIG, params=None):
    """Makes groups with prompts and completions of uneven lengths, one without a completion.

    The parameters are those of the policy that they are drawn by.
    """
    rng, groups = np.random.default_rng(1), []
    for prompt, lengths in zip(PROMPTS, COMPLETIONS, strict=True):
        position, lengths = np.arange(T), np.asarray(lengths)[:, None]
        tokens = rng.integers(2, model.vocab_size, (len(lengths), T))
        tokens = np.where(position < prompt, tokens[:1], tokens)
        tokens = np.where(position < prompt + lengths, tokens, 0).astype(np.int32)
        mask = (position >= prompt) & (position < prompt + lengths)
        logprobs = logprobs_of(model, params, tokens, 0.8)[0] if params else np.zeros(mask.shape)
        groups.append(
            Group(
                lease_id=0,
                ordinal=0,
                prompt_id=0,
                explorer=1,
                tokens=tokens,
                completion_mask=mask,
                behavior_logprobs=np.where(mask, logprobs, 0).astype(np.float32),
                policy_versions=np.where(mask, 0, -1).astype(np.int32),
                rewards=rng.integers(0, 2, len(lengths)).astype(np.float32),
            )
        )
    return groups


def _batch(kind, groups, updates=1, microbatch_rows=0):
    return Batching(kind, 16, T, updates, microbatch_rows, shared_row_tokens=WIDTH).batch(groups)


def _by_trajectory(values, rows):
    """Lists the values under the mask, trajectory by trajectory, in their order."""
    mask = np.asarray(rows.completion_mask)
    if rows.packing is None:
        return np.concatenate([of[there] for of, there in zip(values, mask, strict=True)])
    belongs = np.asarray(rows.packing.trajectories)
    order = np.lexsort([np.asarray(rows.packing.positions)[mask], belongs[mask]])
    return np.asarray(values)[mask][order]


def _rows_of(rows):
    """Lists for each row the trajectories in it, and the copies of prompts."""
    packing = rows.packing
    return [
        ({*map(int, of)} - {-1}, {*map(int, copies)} - {-1})
        for of, copies in zip(packing.trajectories, packing.prompts.copies, strict=True)
    ]


def test_a_row_has_a_prompt_once_and_its_completions_behind_it():
    groups = _groups()[3:]
    (tokens, mask), prompt = (groups[0].tokens, groups[0].completion_mask), PROMPTS[3]
    rows = Batching("shared", 4, T, 1, 0, shared_row_tokens=WIDTH).batch(groups).rows
    learned = [tokens[i][mask[i]] for i in range(4)]
    expected = np.concatenate([tokens[0][:prompt], *learned])
    assert rows.tokens.shape == (1, 24)
    np.testing.assert_array_equal(rows.tokens[0, : expected.size], expected)
    assert not rows.tokens[0, expected.size :].any()
    positions = [*range(prompt), *(7, 8), *range(7, 16), *range(7, 12), 0]
    np.testing.assert_array_equal(rows.packing.positions[0], positions)
    trajectories = [-1] * prompt + [0] * 2 + [1] * 9 + [3] * 5 + [-1]
    np.testing.assert_array_equal(rows.packing.trajectories[0], trajectories)
    prompts = rows.packing.prompts
    np.testing.assert_array_equal(prompts.copies[0], [0] * 23 + [-1])
    np.testing.assert_array_equal(prompts.learned[0, :16], range(7, 23))
    assert (prompts.learned[0, 16:] == 24).all(), "beyond the row where there are no more"
    before = [6, 7, 6, *range(9, 17), 6, *range(18, 22)]
    np.testing.assert_array_equal(prompts.before[0, :16], before)


def test_no_learned_token_is_lost_and_all_stay_beside_what_belongs_to_them():
    groups = _groups()
    one, other = (_batch(kind, groups, 2, 2).rows for kind in ("padded", "shared"))
    for name in ("tokens", "behavior_logprobs", "policy_versions"):
        np.testing.assert_array_equal(
            *(_by_trajectory(getattr(rows, name), rows) for rows in (one, other)), err_msg=name
        )
    counts = other.completion_mask.sum(axis=1)
    np.testing.assert_array_equal((other.packing.prompts.learned < WIDTH).sum(axis=1), counts)


def test_what_has_no_room_in_a_row_stands_behind_another_copy_of_the_prompt():
    group = dataclasses.replace(_groups()[0], completion_mask=np.arange(T)[None] >= [[5]] * 4)
    rows = Batching("shared", 4, T, 1, 0, shared_row_tokens=27).batch([group]).rows
    assert _rows_of(rows) == [({0, 1}, {0}), ({2, 3}, {2})]


def test_other_prompts_are_not_shared_nor_those_of_another_update():
    groups = _groups()[:1] * 2
    of_one = Batching("shared", 8, T, 1, 0, shared_row_tokens=64).batch(groups).rows
    assert _rows_of(of_one) == [({*range(8)}, {0})]
    of_two = Batching("shared", 8, T, 2, 0, shared_row_tokens=64).batch(groups).rows
    assert _rows_of(of_two) == [({*range(4)}, {0}), ({*range(4, 8)}, {4})]
    groups[1] = dataclasses.replace(groups[1], tokens=groups[1].tokens % 2)
    other = Batching("shared", 8, T, 1, 0, shared_row_tokens=64).batch(groups).rows
    assert _rows_of(other) == [({*range(8)}, {0, 4})]


def test_rows_are_as_wide_as_fewest_positions_need():
    short, long = _groups()[3:], _groups()[:1]
    widths = []
    for groups in (short, long):
        batching = Batching("shared", 4, T, 1, 0, shared_row_tokens=32)
        widths.append(batching.batch(groups).rows.tokens.shape)
    assert widths == [(1, 24), (1, 24)]
    assert Batching("shared", 4, T, 1, 0).batch(short).rows.tokens.shape == (1, 256)


@functools.partial(jax.jit, static_argnums=0)
def _graded(forward, params, rows, weights):
    """Computes logprobs, entropy and values, and ∇ of a weighted sum of all of them."""

    def loss(trained, head):
        critic = {"scalar_head": head}
        found = forward.outputs(trained, critic, {}, RowInputs.of(rows))
        parts = [
            jnp.where(rows.completion_mask, x * w, 0).sum()
            for x, w in zip(jax.tree.leaves(found), weights, strict=True)
        ]
        return sum(parts), found

    head = {"kernel": jnp.linspace(-1, 1, forward.model.embed_dim), "bias": jnp.float32(0.3)}
    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, head)


@pytest.mark.gate
@pytest.mark.nightly
@pytest.mark.samples(gate=("by chunks of logits",))
@pytest.mark.parametrize(
    ("model", "logits_bytes"),
    [
        (tiny.CONFIG, 400),
        (tiny.VARIANTS["stretched"], 1 << 20),
        (tiny.VARIANTS["sliding"], 1 << 20),
    ],
    ids=["by chunks of logits", "stretched, with norms", "sliding"],
)
def test_outputs_and_gradients_are_those_of_rows_of_their_own(model, logits_bytes):
    forward, params = Forward(model, 0.8, logits_bytes), tiny.params(model)
    found = []
    for kind in ("padded", "shared"):
        rows = _batch(kind, _groups()).rows
        order = np.cos(np.arange(3 * 1000).reshape(3, -1))[:, : rows.completion_mask.sum()]
        places = np.zeros((3, *rows.tokens.shape), np.float32)
        mask = np.asarray(rows.completion_mask)
        at = np.argsort(_by_trajectory(np.arange(mask.size).reshape(mask.shape), rows))
        places[:, mask] = order[:, at]
        (gradient, outputs) = _graded(forward, params, rows, tuple(places))
        found.append((gradient, [_by_trajectory(x, rows) for x in jax.tree.leaves(outputs)]))
    jax.tree.map(_assert_close, *found)


def _assert_close(found, expected, share=1e-4):
    """Compares arrays, up to a share of their norm: rounding depends on the processor."""
    apart = np.linalg.norm(np.asarray(found) - np.asarray(expected))
    assert apart <= share * np.linalg.norm(expected)


SMALL = dataclasses.replace(tiny.CONFIG, vocab_size=12, num_layers=1)
STEPS = {
    "two updates, each less than a microbatch, with a reference": (
        "dr_grpo",
        SMALL,
        {},
        {"microbatch_rows": 8},
    ),
    "microbatches, adapters": ("grpo", SMALL, {"lora": Lora(2, 4.0)}, {"microbatch_rows": 2}),
    "a mesh, sliding windows": (
        "gspo",
        dataclasses.replace(tiny.VARIANTS["sliding"], vocab_size=12),
        {},
        {"layout": (2, 2)},
    ),
    "a mesh, microbatches, a critic": (
        "ppo",
        SMALL,
        {},
        {"layout": (1, 2), "microbatch_rows": 2},
    ),
    "positions on a mesh, sliding windows": (
        "ppo",
        dataclasses.replace(tiny.VARIANTS["sliding"], vocab_size=12),
        {},
        {"layout": (1, 2, 1, 1, 2)},
    ),
}


# The others have its mesh, and the outputs and gradients of its windows.
SLOW = ("a mesh, sliding windows", "positions on a mesh, sliding windows")


@pytest.mark.gate
@pytest.mark.samples(gate=("microbatches, adapters",))
@pytest.mark.parametrize(
    ("name", "model", "changes", "fields"),
    [
        pytest.param(*step, id=name, marks=[pytest.mark.nightly] if name in SLOW else [])
        for name, step in STEPS.items()
    ],
)
def test_a_step_is_that_of_rows_of_their_own(name, model, changes, fields):
    """Stale data come from other parameters, so that ratios, clipping and weights matter."""
    model = dataclasses.replace(model, **changes)
    params, fields = tiny.params(model), dict(fields)
    algorithm = dataclasses.replace(
        ALGORITHMS[name], kl_coefficient=0.1, entropy_coefficient=0.01, allow_unsafe=True
    )
    of = {
        "algorithm": dataclasses.asdict(algorithm),
        "optimizer": PLAIN | TWICE,
        "model": model,
        "max_completion_tokens": 14,
        "critic": CriticConfig("own", None, 0.5, 0.2, 0) if algorithm.needs_values else None,
    }
    groups = _groups(model, jax.tree.map(lambda x: 0.9 * x, params))
    on = layout(*fields.pop("layout", ()))
    one = trainer_of(**of, layout=layout())
    other = trainer_of(**of, layout=on, **fields)
    batch = _batch("shared", groups, 2, fields.get("microbatch_rows", on.batch_shards))
    assert batch.rows.tokens.shape[0] < 16
    padded = _batch("padded", groups)
    expected, expected_metrics = one.step(_placed(one, params), padded)
    found, metrics = other.compile_step(other.abstract(), batch)(_placed(other, params), batch)
    expected_metrics, metrics = comparable(expected_metrics, padded), comparable(metrics, batch)
    for key, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected.params, params)
    assert max(jax.tree.leaves(moved)) > 1e-3, "the step changes nothing"
    for part in ("params", "critic"):
        jax.tree.map(_assert_close, getattr(found, part), getattr(expected, part))


def _placed(trainer, params):
    """Makes the state at the start of RL from parameters that were drawn elsewhere."""
    return trainer.begin(trainer.start(move(params, trainer.abstract().params)))
