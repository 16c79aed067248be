"""The trainer replays the experts that explorers recorded, in every layout of its rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import Experts
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
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
    engine = Engine(model, slots=7, chunk_tokens=5, layout=Layout.single(), records_routes=True)
    engine.load(params, 0)
    prompts = [np.array(ids, np.int32) for ids in PROMPTS]
    requests = [
        CompletionRequest(ids, Sampling(16, (1, 40, 50)), G, seed=(seed, i))
        for i, ids in enumerate(prompts)
    ]
    rng, groups = np.random.default_rng(0), []
    for ids, completions in zip(prompts, engine.generate(requests), strict=True):
        columns = columns_of(completions, ids, model.routes)
        rewards = rng.integers(0, 2, G).astype(np.float32)
        groups.append(Group(0, 0, 0, 1, rewards=rewards, **columns))
    return groups


def _batching(kind, updates=1):
    return Batching(kind, 16, T, updates, 0, shared_row_tokens=32, routes=MODEL.routes)


@functools.partial(jax.jit, static_argnums=0)
def _logprobs(forward, params, rows):
    return forward.logprobs(params, {}, rows.tokens, rows.packing, None, rows.routes)


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
