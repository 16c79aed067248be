import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.actors.trainer import Trainer, TrainState
from rl_sync.algorithms.named import ALGORITHMS, named
from rl_sync.learning.batching import Batching, lay_out
from rl_sync.models import lora
from rl_sync.models.config import Lora, ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import move
from rl_sync.models.sharding import Layout
from rl_sync.types import Demonstrations, Group
from tests.actors.tiny import OPTIMIZER
from tests.models import tiny

MODEL = ModelConfig(
    vocab_size=7,
    embed_dim=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=8,
    max_length=8,
)
ALGORITHM = dataclasses.replace(
    named("dr_grpo", 0), clip_high=0.28, aggregation="token_mean", allow_unsafe=True
)
GROUP_SIZE = 4


PARAMS = tiny.params(MODEL)
STEPS = 3
_logprobs = jax.jit(token_logprobs, static_argnums=0)


def _trainer(algorithm=None, optimizer=None, **fields):
    of = {
        "model": MODEL,
        "algorithm": dataclasses.replace(ALGORITHM, **(algorithm or {})),
        "optimizer": dataclasses.replace(OPTIMIZER, **(optimizer or {})),
        "group_size": GROUP_SIZE,
        "max_completion_tokens": 6,
        "end_ids": (1,),
        "temperature": 0.8,
        "steps": STEPS,
        "warm_up_steps": STEPS,
        "microbatch_rows": 0,
        "logits_bytes": 1 << 20,
        "layout": Layout.single(),
    }
    return Trainer(**{**of, **fields})


def _state(trainer, params=PARAMS):
    """Makes a trainer state after its warm-up; a new one each time, since a step donates it."""
    like = trainer.warm_up_like()._replace(opt_state=None)
    return trainer.begin(move(TrainState(jnp.int32(0), params, None, None), like))


def _fresh(trainer):
    """Makes a trainer state before its warm-up; numpy draws it, which compiles nothing."""
    opt_state = trainer.optimizer.warm_up(trainer.warm_up_steps).init(PARAMS)
    return move(TrainState(jnp.int32(0), PARAMS, opt_state, None), trainer.warm_up_like())


def _group(lengths, row_tokens=8, version=0, params=PARAMS, model=MODEL):
    """Makes trajectories that the policy of `_state` could have drawn, of 2 prompt tokens each."""
    random, rows = np.random.default_rng(1), len(lengths)
    tokens = random.integers(2, 7, (rows, row_tokens))
    end = 2 + np.asarray(lengths)[:, None]
    position = np.arange(row_tokens)
    mask = (position >= 2) & (position < end)
    tokens = np.where(position < end, tokens, 0).astype(np.int32)
    logprobs, _ = _logprobs(model, params, tokens, 0.8)
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=1,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.where(mask, logprobs, 0),
        policy_versions=np.where(mask, version, -1).astype(np.int32),
        rewards=random.integers(0, 2, rows).astype(np.float32),
    )


def _batch(lengths=(3, 4, 4) * 5 + (3,), kind="padded", updates=1, microbatch_rows=0, **fields):
    batching = Batching(kind, len(lengths), 8, updates, microbatch_rows)
    return batching.batch([_group(lengths, **fields)])


def _with_rows(batch, **changes):
    return batch._replace(rows=batch.rows._replace(**changes))


def _assert_close(a, b, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def _drift(before, after, batch):
    """Returns the increase of each trajectory's log-probability."""
    old, new = (_logprobs(MODEL, p, batch.rows.tokens, 0.8)[0] for p in (before, after))
    return np.where(batch.rows.completion_mask, new - old, 0).sum(axis=1)


def test_a_step_makes_the_better_completions_likelier_and_the_worse_less_likely():
    trainer, batch = _trainer(), _batch()
    after, _ = trainer.step(_state(trainer), batch)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1)
    drift = _drift(PARAMS, after.params, batch)
    assert drift[advantages > 0].sum() > 0
    assert drift[advantages < 0].sum() < 0
    assert int(after.step) == 1


def test_the_end_of_sequence_is_trained():
    """Completions have one token, the end of sequence, so only this can contribute to the loss."""
    trainer, batch = _trainer(), _batch((1,) * 16)
    batch = batch._replace(rewards=jnp.tile(jnp.array([1.0, 1.0, 0.0, 0.0]), 4))
    tokens = jnp.where(batch.rows.completion_mask, jnp.where(batch.rewards[:, None] == 1, 1, 6), 2)
    batch = _with_rows(batch, tokens=tokens, behavior_logprobs=jnp.zeros((16, 8)))
    logprobs, _ = _logprobs(MODEL, PARAMS, tokens, 0.8)
    drawn = jnp.where(batch.rows.completion_mask, logprobs, 0)
    batch = _with_rows(batch, behavior_logprobs=drawn)
    after, _ = trainer.step(_state(trainer), batch)
    drift = _drift(PARAMS, after.params, batch).reshape(4, 4)
    assert (drift[:, :2] > 0).all()
    assert (drift[:, 2:] < 0).all()


def test_the_first_update_is_that_of_the_plain_policy_gradient():
    """With ratios of 1, the gradient is −Σ A ∇log π over the tokens, divided by their number."""
    trainer = _trainer()
    batch, state = _batch(), _state(trainer)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)

    def loss_of(params):
        logprobs, _ = _logprobs(MODEL, params, batch.rows.tokens, 0.8)
        return (
            -jnp.sum(advantages * logprobs * batch.rows.completion_mask)
            / batch.rows.completion_mask.sum()
        )

    gradient = jax.jit(jax.grad(loss_of))(state.params)
    transformation = OPTIMIZER.reinforcement(STEPS)
    updates, _ = transformation.update(gradient, transformation.init(state.params), state.params)
    expected = optax.apply_updates(state.params, updates)
    after, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-4)
    _assert_close(after.params, expected, atol=1e-4)


def test_on_its_own_rollouts_the_policy_differs_from_its_behavior_by_nothing():
    trainer = _trainer()
    _, metrics = trainer.step(_state(trainer), _batch())
    for name in ("kl_behavior_proximal", "kl_proximal_current", "logprob_gap"):
        assert abs(float(metrics[name])) < 1e-6
    assert metrics["clip_fraction"] == 0
    np.testing.assert_allclose(metrics["effective_sample_share"], 1, rtol=1e-5)
    np.testing.assert_allclose(metrics["ratio_p95_staleness_0"], 1, atol=2e-3)
    assert np.isnan(metrics["ratio_p95_staleness_1"])


UNEVEN = (1, 6, 2, 3, 1, 5, 1, 1) * 2
TWICE = {"updates_per_batch": 2}
HELD = {"kl_coefficient": 0.5}


def test_steps_are_deterministic_to_the_bit():
    trainer = _trainer(HELD, TWICE)
    first, again = (trainer.step(_state(trainer), _batch(UNEVEN)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.parametrize(("kind", "microbatch_rows"), [("padded", 2), ("packed", 0), ("packed", 2)])
def test_neither_the_layout_nor_microbatches_change_a_step(kind, microbatch_rows):
    """Two updates with a reference, on lengths from 1 to 6 tokens; means must be exact too."""
    whole = _trainer(HELD, TWICE)
    state, metrics = whole.step(_state(whole), _batch(UNEVEN))
    trainer = _trainer(HELD, TWICE, microbatch_rows=microbatch_rows)
    batch = _batch(UNEVEN, kind, 2, microbatch_rows)
    assert kind == "padded" or batch.rows.tokens.shape[0] < 16
    other, other_metrics = trainer.step(_state(trainer), batch)
    assert metrics.keys() == other_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(other_metrics[name], value, rtol=2e-4, atol=1e-6, err_msg=name)
    _assert_close(state.params, other.params, atol=1e-4)


def test_neither_changes_a_step_that_looks_at_whole_batches_and_at_its_start():
    """Stale data from other parameters, so that ratios, clipping and masks matter.

    Other algorithms are compared like this on a mesh.
    """
    algorithm = dataclasses.replace(
        ALGORITHMS["m2po"], kl_coefficient=0.1, entropy_coefficient=0.01, allow_unsafe=True
    )
    drawn_by = jax.tree.map(lambda x: 0.9 * x, PARAMS)
    results = []
    for kind, microbatch_rows in (("padded", 0), ("packed", 2)):
        trainer = dataclasses.replace(
            _trainer(optimizer=TWICE, microbatch_rows=microbatch_rows), algorithm=algorithm
        )
        batch = _batch(UNEVEN, kind, 2, microbatch_rows, params=drawn_by)
        state = _state(trainer)._replace(step=jnp.int32(1))
        results.append(trainer.step(state, batch))
    (state, metrics), (other, other_metrics) = results
    assert metrics.keys() == other_metrics.keys()
    for key, value in metrics.items():
        assert key.startswith("ratio_p") or np.isfinite(value), key
        np.testing.assert_allclose(other_metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    _assert_close(state.params, other.params, atol=1e-4)


def test_with_several_updates_the_decoupled_ratio_is_taken_to_the_start_of_the_step():
    """With a learning rate of nearly 0 nothing moves in a step, however stale the data are."""
    drawn_by = jax.tree.map(lambda x: 0.9 * x, PARAMS)
    trainer = dataclasses.replace(
        _trainer(optimizer={**TWICE, "learning_rate": 1e-9}), algorithm=ALGORITHMS["decoupled_ppo"]
    )
    _, metrics = trainer.step(_state(trainer), _batch(UNEVEN, updates=2, params=drawn_by))
    assert abs(float(metrics["kl_proximal_current"])) < 1e-6
    assert metrics["kl_behavior_proximal"] > 1e-3
    assert metrics["effective_sample_share"] < 0.999


def test_padding_changes_nothing():
    trainer, group = _trainer(), _group((2, 3, 1, 1) * 4, row_tokens=12)
    wide, short = (Batching(kind, 16, 12, 1, 0).batch([group]) for kind in ("padded", "bucketed"))
    assert short.rows.tokens.shape[1] == 8
    (a, a_metrics), (b, b_metrics) = (trainer.step(_state(trainer), x) for x in (wide, short))
    _assert_close(a_metrics, b_metrics, atol=1e-5)
    _assert_close(a.params, b.params, atol=1e-4)


def test_several_updates_each_take_an_equal_share_of_the_groups_in_order():
    batch = _batch(UNEVEN)
    whole, half = _trainer(HELD, TWICE), _trainer(HELD)
    together, _ = whole.step(_state(whole), batch)
    apart = _state(half)
    for rows in (slice(0, 8), slice(8, 16)):
        apart, _ = half.step(apart, jax.tree.map(lambda x, rows=rows: x[rows], batch))
    _assert_close(together.params, apart.params, atol=1e-5)
    assert (int(together.step), int(apart.step)) == (1, 2)


def test_a_clipped_token_no_longer_pulls():
    """Behavior is far below the policy: all ratios exceed 1 + ε, so advantages > 0 are clipped."""
    trainer = _trainer()
    batch = _batch()
    batch = _with_rows(batch, behavior_logprobs=batch.rows.behavior_logprobs - 1.0)
    _, metrics = trainer.step(_state(trainer), batch)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    above = (rewards > rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)
    mask = np.asarray(batch.rows.completion_mask)
    np.testing.assert_allclose(metrics["clip_fraction"], (mask & above).sum() / mask.sum())
    np.testing.assert_allclose(metrics["kl_proximal_current"], np.exp(1) - 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["logprob_gap"], 1, rtol=1e-5)


def test_the_reference_is_the_policy_that_rl_started_from_and_holds_it_back():
    free, held = _trainer(), _trainer({"kl_coefficient": 10.0})
    batch = _batch()
    assert _state(free).ref_params is None
    start, states = _state(free).params, []
    for trainer in (free, held):
        state = _state(trainer)
        for _ in range(5):
            state, metrics = trainer.step(state, batch)
        states.append(state)
    assert "kl_reference" in metrics
    _assert_close(states[1].ref_params, start, atol=0)
    kept, _ = _logprobs(MODEL, start, batch.rows.tokens, 0.8)
    drift = [
        float(jnp.abs(_logprobs(MODEL, s.params, batch.rows.tokens, 0.8)[0] - kept).mean())
        for s in states
    ]
    assert drift[1] < 0.5 * drift[0]


def test_the_reference_is_refreshed_every_so_many_steps():
    trainer = _trainer({"kl_coefficient": 0.1, "refresh_reference_steps": 2})
    state, batch = _state(trainer), _batch()
    state, _ = trainer.step(state, batch)
    _assert_close(state.ref_params, PARAMS, atol=0)
    state, _ = trainer.step(state, batch)
    _assert_close(state.ref_params, state.params, atol=0)
    assert not np.array_equal(jax.tree.leaves(state.params)[0], jax.tree.leaves(PARAMS)[0])


def test_metrics_describe_the_batch():
    trainer = _trainer()
    state = _state(trainer)._replace(step=jnp.int32(7))
    batch = _batch(version=5)
    mask = np.asarray(batch.rows.completion_mask)
    versions = np.asarray(batch.rows.policy_versions).copy()
    versions[0][mask[0]] = 3
    rewards = np.concatenate([np.ones(4), [1, 0, 0, 0], np.zeros(8)])
    batch = batch._replace(rewards=jnp.asarray(rewards, jnp.float32))
    batch = _with_rows(batch, policy_versions=jnp.asarray(versions))
    _, metrics = trainer.step(state, batch)
    assert metrics["reward_mean"] == 5 / 16
    np.testing.assert_allclose(metrics["reward_std"], rewards.std(), rtol=1e-6)
    assert metrics["groups_without_spread"] == 3 / 4
    np.testing.assert_allclose(metrics["completion_tokens_mean"], mask.sum(axis=1).mean())
    assert metrics["staleness_max"] == 4
    np.testing.assert_allclose(metrics["staleness_mean"], (7 - versions)[mask].mean(), rtol=1e-6)


def test_groups_without_spread_change_nothing():
    trainer = _trainer()
    batch = _batch()._replace(rewards=jnp.ones(16))
    after, _ = trainer.step(_state(trainer), batch)
    _assert_close(after.params, _state(trainer).params, atol=0)


@pytest.mark.parametrize(("broken", "at_end"), [(0, 0), (1, 1)])
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(broken, at_end):
    trainer = _trainer({"kl_coefficient": 0.1}, TWICE)
    batch = _batch(UNEVEN, updates=2)
    rewards = jnp.asarray(batch.rewards).at[8 * broken].set(jnp.nan)
    after, metrics = trainer.step(_state(trainer), batch._replace(rewards=rewards))
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (1, at_end)
    assert after.opt_state[1][0].count == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert not np.array_equal(after.params["final_norm"]["scale"], PARAMS["final_norm"]["scale"])
    _, metrics = trainer.step(_state(trainer), batch)
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (0, 0)


def test_a_step_without_a_finite_update_changes_nothing_but_its_count():
    trainer, batch = _trainer(), _batch()
    after, metrics = trainer.step(_state(trainer), batch._replace(rewards=np.nan * batch.rewards))
    assert np.isnan(metrics["loss"])
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (1, 1)
    before = _state(trainer)
    jax.tree.map(np.testing.assert_array_equal, after, before._replace(step=jnp.int32(1)))


def test_the_compiled_step_takes_the_same_step():
    trainer = _trainer(HELD, TWICE)
    largest = Batching("padded", 16, 8, 2, 0).largest()
    compiled = trainer.compile_step(trainer.like(), largest)
    batch = _batch(UNEVEN)
    _assert_close(compiled(_state(trainer), batch)[0], trainer.step(_state(trainer), batch)[0])


def test_with_lora_only_adapters_are_trained_and_have_optimizer_state_and_a_reference():
    model = dataclasses.replace(MODEL, lora=Lora(rank=2, alpha=4.0, targets=("q", "o", "down")))
    params = tiny.params(model)
    trainer = _trainer(HELD, model=model)
    state, batch = _state(trainer, params), _batch(params=params, model=model)
    adapters, base = lora.split(params)
    for part in (state.ref_params, state.opt_state[1][0].mu):
        assert jax.tree.structure(part) == jax.tree.structure(adapters)

    def loss_of(params):
        logprobs, _ = token_logprobs(model, params, batch.rows.tokens, 0.8)
        rewards = batch.rewards.reshape(-1, GROUP_SIZE)
        advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)
        return (
            -jnp.sum(advantages * logprobs * batch.rows.completion_mask)
            / batch.rows.completion_mask.sum()
        )

    gradient, _ = lora.split(jax.jit(jax.grad(loss_of))(params))
    after, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-4)
    trained, frozen = lora.split(after.params)
    jax.tree.map(np.testing.assert_array_equal, frozen, base)
    jax.tree.map(np.testing.assert_array_equal, after.ref_params, adapters)
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, trained, adapters)))


def test_a_step_takes_its_state_over():
    trainer = _trainer()
    state, batch = _state(trainer), _batch()
    trainer.step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_the_warm_up_learns_the_demonstrations_and_counts_no_step():
    trainer = _trainer()
    state, batch = _fresh(trainer), _batch()
    demonstrations = batch.rows.tokens[:4], batch.rows.completion_mask[:4]
    state, first = trainer.warm_up_step(state, *demonstrations)
    np.testing.assert_allclose(first["loss"], np.log(7), atol=1.0)
    for _ in range(150):
        state, last = trainer.warm_up_step(state, *demonstrations)
    assert last["loss"] < 0.3 * first["loss"]
    assert int(state.step) == 0


def test_a_warm_up_step_that_is_not_finite_changes_nothing():
    trainer, batch = _trainer(), _batch()
    before = [_fresh(trainer) for _ in range(2)]
    for state in before:
        state.params["final_norm"]["scale"] *= 1e38
    state, metrics = trainer.warm_up_step(before[0], batch.rows.tokens, batch.rows.completion_mask)
    assert metrics["skipped_updates"] == 1
    jax.tree.map(np.testing.assert_array_equal, state, before[1])


def test_packing_demonstrations_does_not_change_the_warm_up():
    trainer, batch = _trainer(), _batch((1, 2, 6, 1, 3, 2, 1, 4))
    demonstrations = Demonstrations(batch.rows.tokens, batch.rows.completion_mask)
    packed = lay_out(demonstrations, "packed")
    assert packed.tokens.shape[0] < 8
    state, metrics = trainer.warm_up_step(_fresh(trainer), *demonstrations)
    other, other_metrics = trainer.warm_up_step(_fresh(trainer), *packed)
    np.testing.assert_allclose(other_metrics["loss"], metrics["loss"], rtol=1e-5)
    _assert_close(state.params, other.params, atol=1e-4)


def test_rl_starts_with_a_fresh_optimizer():
    trainer = _trainer()
    state, batch = _fresh(trainer), _batch()
    state, _ = trainer.warm_up_step(state, batch.rows.tokens, batch.rows.completion_mask)
    moments = trainer.begin(state).opt_state
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moments))
