"""The trainer replays the experts that explorers recorded, in every layout of its rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import Experts
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.token_records import TokenRecords
from rl_sync.types import Group
from tests.models import tiny
from tests.roles.trainer.training import comparable, state_of, trainer_of

T, G = 24, 4
MODEL = dataclasses.replace(
    tiny.CONFIG, vocab_size=64, num_layers=3, max_length=T, experts=Experts(16, 2, 12)
)
ROUGH = dataclasses.replace(MODEL, dtype="bfloat16")
PROMPTS = ([5, 60, 5], [9], [33, 34, 35, 36, 63], [62, 62])
KINDS = ["padded", "bucketed", "packed", "shared"]


@functools.cache
def _params(seed=3):
    return tiny.params(MODEL, seed)


def _groups(model, params, seed=0):
    engine = Engine(
        model, Layout.single(), EngineOptions(slots=7, chunk_tokens=5, records_routes=True)
    )
    engine.load(params, 0)
    prompts = [np.array(ids, np.int32) for ids in PROMPTS]
    requests = [
        CompletionRequest(ids, Sampling(16, (1, 40, 50)), G, seed=(seed, i))
        for i, ids in enumerate(prompts)
    ]
    rng, groups = np.random.default_rng(0), []
    for ids, completions in zip(prompts, engine.generate(requests), strict=True):
        columns = columns_of(completions, ids, TokenRecords(model.routes))
        rewards = rng.integers(0, 2, G).astype(np.float32)
        groups.append(Group(0, 0, 0, 1, rewards=rewards, **columns))
    return groups


def _batching(kind, updates=1):
    return Batching(
        kind, 16, T, updates, 0, shared_row_tokens=32, records=TokenRecords(MODEL.routes)
    )


@functools.partial(jax.jit, static_argnums=0)
def _logprobs(forward, params, rows):
    return forward.logprobs(params, {}, RowInputs.of(rows))


def _gaps(model, params, rows):
    mask = np.asarray(rows.completion_mask)
    found = np.asarray(_logprobs(Forward(model, 1.0, 1 << 20), params, rows))
    return np.abs(found - rows.behavior_logprobs)[mask]


@pytest.mark.nightly
@pytest.mark.samples("0", gate=())
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_in_bfloat16_the_gap_shrinks_where_experts_are_replayed(seed):
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _params(20 + seed))
    rows = _batching("padded").batch(_groups(ROUGH, params, seed)).rows
    with_replay = _gaps(ROUGH, params, rows)
    without = _gaps(ROUGH, params, rows._replace(routes=None))
    assert with_replay.max() < 0.6 * without.max()
    assert with_replay.mean() < without.mean()


@pytest.mark.nightly
@pytest.mark.samples("shared", gate=("packed",))
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_keeps_the_experts_of_each_token(kind):
    # Experts that other weights chose: a token in another's place would change its logprob.
    groups = _groups(MODEL, tiny.params(MODEL, 8))
    padded, rows = _batching("padded").placed(groups), _batching(kind, updates=2).placed(groups)
    forward = Forward(MODEL, 1.0, 1 << 20)
    expected = np.asarray(_logprobs(forward, _params(), padded.batch.rows))
    found = np.asarray(_logprobs(forward, _params(), rows.batch.rows))

    def of_tokens(placed, values):
        tokens, mask = placed.batch.rows.tokens, placed.batch.rows.completion_mask
        return sorted(zip(tokens[mask].tolist(), values[mask].tolist(), strict=True))

    np.testing.assert_allclose(of_tokens(rows, found), of_tokens(padded, expected), atol=2e-5)
    choosing = _logprobs(forward, _params(), padded.batch.rows._replace(routes=None))
    assert np.abs(np.asarray(choosing) - expected)[padded.batch.rows.completion_mask].max() > 0.05


def _group(prompts_of):
    """Makes a group of four completions, of 4 tokens each, of a prompt of 5.

    Args:
      prompts_of: for each completion, the draw of routes that the prompt's tokens have.
    """
    rng, tokens = np.random.default_rng(5), np.zeros((G, 9), np.int32)
    tokens[:, :5], tokens[:, 5:] = rng.integers(64, size=5), rng.integers(64, size=(G, 4))
    experts = np.tile(np.arange(16, dtype=np.uint8), (2 * G, 9, 3, 1))
    drawn = rng.permuted(experts, axis=-1)[..., :2]
    routes = drawn[:G].copy()
    routes[:, :5], routes[:, -1] = drawn[G:][prompts_of, :5], 255
    fields = {"behavior_logprobs": np.zeros((G, 9), np.float32), "rewards": np.zeros(G, np.float32)}
    fields |= {"policy_versions": np.zeros((G, 9), np.int32), "routes": routes}
    return Group(0, 0, 0, 1, tokens=tokens, completion_mask=np.arange(9) >= [[5]] * G, **fields)


@pytest.mark.gate
def test_a_prompt_is_shared_by_completions_that_have_equal_routes_for_it(subtests):
    forward = Forward(MODEL, 1.0, 1 << 20)
    for name, prompts_of, copies in [
        ("no swap", [0, 0, 0, 0], 1),
        ("a swap before the last two were prefilled", [0, 0, 1, 1], 2),
    ]:
        with subtests.test(name):
            group = _group(prompts_of)
            alone, shared = (
                Batching(kind, G, T, 1, 0, shared_row_tokens=32, records=TokenRecords(MODEL.routes))
                .batch([group])
                .rows
                for kind in ("padded", "shared")
            )
            packing = shared.packing
            assert (packing.prompts.copies >= 0).sum() == 5 * copies + 4 * G
            expected, found = (
                np.asarray(_logprobs(forward, _params(), rows))[rows.completion_mask]
                for rows in (alone, shared)
            )
            order = np.argsort(packing.trajectories[shared.completion_mask], kind="stable")
            np.testing.assert_allclose(found[order], expected, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.samples(gate=("packed",))
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_a_step_learns_the_same_in_every_layout(kind):
    groups = _groups(MODEL, tiny.params(MODEL, 8))

    def after(kind):
        plain = {"name": "sgd", "b1": 0.0, "learning_rate": 0.1, "updates_per_batch": 2}
        trainer = trainer_of(model=MODEL, optimizer=plain, max_completion_tokens=16)
        batch = _batching(kind, updates=2).batch(groups)
        state, metrics = trainer.step(state_of(trainer, _params()), batch)
        return state.params, comparable(metrics, batch)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), after("padded"), after(kind)
    )
