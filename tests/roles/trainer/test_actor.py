import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning.optimizer import rl_optimizer
from rl_sync.learning.rows.batching import Batching
from rl_sync.models import lora
from rl_sync.models.config import Lora
from rl_sync.models.logprobs import token_logprobs
from tests.models import tiny
from tests.roles.trainer.tiny import OPTIMIZER
from tests.roles.trainer.training import (
    GROUP_SIZE,
    HELD,
    MODEL,
    PARAMS,
    STEPS,
    TWICE,
    UNEVEN,
    assert_close,
    batch_of,
    comparable,
    drift_of,
    group_of,
    logprobs_of,
    state_of,
    trainer_of,
    with_rows,
)


@pytest.mark.nightly
def test_a_step_makes_the_better_completions_likelier_and_the_worse_less_likely():
    trainer, batch = trainer_of(), batch_of()
    after, _ = trainer.step(state_of(trainer), batch)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1)
    drift = drift_of(PARAMS, after.params, batch)
    assert drift[advantages > 0].sum() > 0
    assert drift[advantages < 0].sum() < 0
    assert int(after.step) == 1


@pytest.mark.nightly
def test_the_end_of_sequence_is_trained():
    """Completions have one token, the end of sequence, so only this can contribute to the loss."""
    trainer, batch = trainer_of(), batch_of((1,) * 16)
    batch = batch._replace(rewards=jnp.tile(jnp.array([1.0, 1.0, 0.0, 0.0]), 4))
    tokens = jnp.where(batch.rows.completion_mask, jnp.where(batch.rewards[:, None] == 1, 1, 6), 2)
    batch = with_rows(batch, tokens=tokens, behavior_logprobs=jnp.zeros((16, 8)))
    logprobs, _ = logprobs_of(MODEL, PARAMS, tokens, 0.8)
    drawn = jnp.where(batch.rows.completion_mask, logprobs, 0)
    batch = with_rows(batch, behavior_logprobs=drawn)
    after, _ = trainer.step(state_of(trainer), batch)
    drift = drift_of(PARAMS, after.params, batch).reshape(4, 4)
    assert (drift[:, :2] > 0).all()
    assert (drift[:, 2:] < 0).all()


@pytest.mark.gate
def test_the_first_update_is_that_of_the_plain_policy_gradient():
    """With ratios of 1, the gradient is −Σ A ∇log π over the tokens, divided by their number."""
    trainer = trainer_of()
    batch, state = batch_of(), state_of(trainer)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)

    def loss_of(params):
        logprobs, _ = logprobs_of(MODEL, params, batch.rows.tokens, 0.8)
        return (
            -jnp.sum(advantages * logprobs * batch.rows.completion_mask)
            / batch.rows.completion_mask.sum()
        )

    @jax.jit
    def updated(params):
        gradient = jax.grad(loss_of)(params)
        transformation = rl_optimizer(OPTIMIZER, STEPS)
        updates, _ = transformation.update(gradient, transformation.init(params), params)
        return optax.apply_updates(params, updates), optax.tree.norm(gradient)

    expected, norm = updated(state.params)
    after, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)
    assert_close(after.params, expected, atol=1e-4)


@pytest.mark.gate
def test_on_its_own_rollouts_the_policy_differs_from_its_behavior_by_nothing():
    trainer = trainer_of()
    _, metrics = trainer.step(state_of(trainer), batch_of())
    for name in ("kl_behavior_proximal", "kl_proximal_current", "logprob_gap"):
        assert abs(float(metrics[name])) < 1e-6
    assert metrics["clip_fraction"] == 0
    np.testing.assert_allclose(metrics["effective_sample_share"], 1, rtol=1e-5)
    np.testing.assert_allclose(metrics["ratio_p95_staleness_0"], 1, atol=2e-3)
    assert np.isnan(metrics["ratio_p95_staleness_1"])


@pytest.mark.nightly
def test_groups_of_equal_rewards_leave_the_policy_as_it_is_to_the_bit():
    """A sum of seven rewards of 99.9, divided by 7, is rounded in float32."""
    trainer, batch = trainer_of({"advantage": "grpo"}, group_size=7), batch_of((3, 4) * 7)
    before = jax.tree.map(np.asarray, state_of(trainer).params)
    equal = np.repeat(np.float32([99.9, 0.7]), 7)
    after, metrics = trainer.step(state_of(trainer), batch._replace(rewards=jnp.asarray(equal)))
    assert metrics["gradient_norm"] == 0
    assert metrics["groups_without_spread"] == 1
    jax.tree.map(np.testing.assert_array_equal, after.params, before)
    equal[0] += 1
    _, metrics = trainer.step(state_of(trainer), batch._replace(rewards=jnp.asarray(equal)))
    assert metrics["gradient_norm"] > 0
    assert metrics["groups_without_spread"] == 0.5


@pytest.mark.nightly
def test_steps_are_deterministic_to_the_bit():
    trainer = trainer_of(HELD, TWICE)
    first, again = (trainer.step(state_of(trainer), batch_of(UNEVEN)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.nightly
@pytest.mark.samples("packed-2", gate=("padded-2",))
@pytest.mark.parametrize(("kind", "microbatch_rows"), [("padded", 2), ("packed", 0), ("packed", 2)])
def test_neither_the_layout_nor_microbatches_change_a_step(kind, microbatch_rows):
    """Two updates with a reference, on lengths from 1 to 6 tokens; means must be exact too."""
    whole = trainer_of(HELD, TWICE)
    state, metrics = whole.step(state_of(whole), batch_of(UNEVEN))
    trainer = trainer_of(HELD, TWICE, microbatch_rows=microbatch_rows)
    batch = batch_of(UNEVEN, kind, 2, microbatch_rows)
    assert kind == "padded" or batch.rows.tokens.shape[0] < 16
    other, other_metrics = trainer.step(state_of(trainer), batch)
    metrics, other_metrics = comparable(metrics, batch_of(UNEVEN)), comparable(other_metrics, batch)
    assert metrics.keys() == other_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(other_metrics[name], value, rtol=2e-4, atol=1e-6, err_msg=name)
    assert_close(state.params, other.params, atol=1e-4)


@pytest.mark.nightly
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
        trainer = trainer_of(dataclasses.asdict(algorithm), TWICE, microbatch_rows=microbatch_rows)
        batch = batch_of(UNEVEN, kind, 2, microbatch_rows, params=drawn_by)
        state, metrics = trainer.step(state_of(trainer)._replace(step=jnp.int32(1)), batch)
        results.append((state, comparable(metrics, batch)))
    (state, metrics), (other, other_metrics) = results
    assert metrics.keys() == other_metrics.keys()
    for key, value in metrics.items():
        # None of the tokens is fresh.
        assert key.startswith("ratio_p") or key == "mismatch" or np.isfinite(value).all(), key
        np.testing.assert_allclose(other_metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    assert_close(state.params, other.params, atol=1e-4)


@pytest.mark.nightly
def test_with_several_updates_the_decoupled_ratio_is_taken_to_the_start_of_the_step():
    """With a learning rate of nearly 0 nothing moves in a step, however stale the data are."""
    drawn_by = jax.tree.map(lambda x: 0.9 * x, PARAMS)
    algorithm = dataclasses.asdict(ALGORITHMS["decoupled_ppo"])
    trainer = trainer_of(algorithm, {**TWICE, "learning_rate": 1e-9})
    _, metrics = trainer.step(state_of(trainer), batch_of(UNEVEN, updates=2, params=drawn_by))
    assert abs(float(metrics["kl_proximal_current"])) < 1e-6
    assert metrics["kl_behavior_proximal"] > 1e-3
    assert metrics["effective_sample_share"] < 0.999


@pytest.mark.gate
def test_padding_changes_nothing():
    trainer, group = trainer_of(), group_of((2, 3, 1, 1) * 4, row_tokens=12)
    wide, short = (Batching(kind, 16, 12, 1, 0).batch([group]) for kind in ("padded", "bucketed"))
    assert short.rows.tokens.shape[1] == 8
    (a, a_metrics), (b, b_metrics) = (trainer.step(state_of(trainer), x) for x in (wide, short))
    assert_close(comparable(a_metrics, wide), comparable(b_metrics, short), atol=1e-5)
    assert_close(a.params, b.params, atol=1e-4)


@pytest.mark.gate
def test_several_updates_each_take_an_equal_share_of_the_groups_in_order():
    batch = batch_of(UNEVEN)
    whole, half = trainer_of(HELD, TWICE), trainer_of(HELD)
    together, _ = whole.step(state_of(whole), batch)
    apart = state_of(half)
    for rows in (slice(0, 8), slice(8, 16)):
        apart, _ = half.step(apart, jax.tree.map(lambda x, rows=rows: x[rows], batch))
    assert_close(together.params, apart.params, atol=1e-5)
    assert (int(together.step), int(apart.step)) == (1, 2)


def test_a_clipped_token_no_longer_pulls():
    """Behavior is far below the policy: all ratios exceed 1 + ε, so advantages > 0 are clipped."""
    trainer = trainer_of()
    batch = batch_of()
    batch = with_rows(batch, behavior_logprobs=batch.rows.behavior_logprobs - 1.0)
    _, metrics = trainer.step(state_of(trainer), batch)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    above = (rewards > rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)
    mask = np.asarray(batch.rows.completion_mask)
    np.testing.assert_allclose(metrics["clip_fraction"], (mask & above).sum() / mask.sum())
    assert metrics["clip_fraction_high"] == metrics["clip_fraction"]
    assert metrics["clip_fraction_low"] == 0
    np.testing.assert_allclose(metrics["kl_proximal_current"], np.exp(1) - 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["logprob_gap"], 1, rtol=1e-5)


@pytest.mark.gate
def test_the_reference_is_the_policy_that_rl_started_from_and_holds_it_back():
    free, held = trainer_of(), trainer_of({"kl_coefficient": 10.0})
    batch = batch_of()
    assert state_of(free).ref_params is None
    start, states = state_of(free).params, []
    for trainer in (free, held):
        state = state_of(trainer)
        for _ in range(5):
            state, metrics = trainer.step(state, batch)
        states.append(state)
    assert "kl_reference" in metrics
    assert_close(states[1].ref_params, start, atol=0)
    kept, _ = logprobs_of(MODEL, start, batch.rows.tokens, 0.8)
    drift = [
        float(jnp.abs(logprobs_of(MODEL, s.params, batch.rows.tokens, 0.8)[0] - kept).mean())
        for s in states
    ]
    assert drift[1] < 0.5 * drift[0]


@pytest.mark.nightly
def test_the_reference_is_refreshed_every_so_many_steps():
    trainer = trainer_of({"kl_coefficient": 0.1, "refresh_reference_steps": 2})
    state, batch = state_of(trainer), batch_of()
    state, _ = trainer.step(state, batch)
    assert_close(state.ref_params, PARAMS, atol=0)
    state, _ = trainer.step(state, batch)
    assert_close(state.ref_params, state.params, atol=0)
    assert not np.array_equal(jax.tree.leaves(state.params)[0], jax.tree.leaves(PARAMS)[0])


@pytest.mark.nightly
def test_the_reference_is_held_in_the_dtype_of_the_computation():
    model = dataclasses.replace(MODEL, dtype="bfloat16")
    trainer = trainer_of({"kl_coefficient": 0.1, "refresh_reference_steps": 2}, model=model)
    state, batch = state_of(trainer), batch_of()
    for moved in (False, True):
        dtypes = {str(x.dtype) for x in jax.tree.leaves(state.ref_params)}
        assert dtypes == {"bfloat16", "float32"}, "float32 for the scales of norms"
        like = trainer.abstract().ref_params
        assert jax.tree.map(lambda x: x.dtype, state.ref_params) == jax.tree.map(
            lambda x: x.dtype, like
        )
        state, metrics = trainer.step(state, batch)
        if not moved:
            assert metrics["kl_reference"] == 0, "the same bits as the policy, at first"
            state, _ = trainer.step(state, batch)
    assert metrics["kl_reference"] == 0, "and after it was refreshed"


@pytest.mark.nightly
def test_metrics_describe_the_batch():
    trainer = trainer_of()
    state = state_of(trainer)._replace(step=jnp.int32(7))
    batch = batch_of(version=5)
    mask = np.asarray(batch.rows.completion_mask)
    versions = np.asarray(batch.rows.policy_versions).copy()
    versions[0][mask[0]] = 3
    rewards = np.concatenate([np.ones(4), [1, 0, 0, 0], np.zeros(8)])
    batch = batch._replace(rewards=jnp.asarray(rewards, jnp.float32))
    batch = with_rows(batch, policy_versions=jnp.asarray(versions))
    _, metrics = trainer.step(state, batch)
    assert metrics["reward_mean"] == 5 / 16
    np.testing.assert_allclose(metrics["reward_std"], rewards.std(), rtol=1e-6)
    assert metrics["groups_without_spread"] == 3 / 4
    np.testing.assert_allclose(metrics["completion_tokens_mean"], mask.sum(axis=1).mean())
    assert metrics["staleness_max"] == 4
    np.testing.assert_allclose(metrics["staleness_mean"], (7 - versions)[mask].mean(), rtol=1e-6)


def test_groups_without_spread_change_nothing():
    trainer = trainer_of()
    batch = batch_of()._replace(rewards=jnp.ones(16))
    after, _ = trainer.step(state_of(trainer), batch)
    assert_close(after.params, state_of(trainer).params, atol=0)


@pytest.mark.gate
@pytest.mark.samples("1-1", gate=())
@pytest.mark.parametrize(("broken", "at_end"), [(0, 0), (1, 1)])
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(broken, at_end):
    trainer = trainer_of({"kl_coefficient": 0.1}, TWICE)
    batch = batch_of(UNEVEN, updates=2)
    rewards = jnp.asarray(batch.rewards).at[8 * broken].set(jnp.nan)
    after, metrics = trainer.step(state_of(trainer), batch._replace(rewards=rewards))
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (1, at_end)
    assert after.opt_state[1][0].count == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert not np.array_equal(after.params["final_norm"]["scale"], PARAMS["final_norm"]["scale"])
    _, metrics = trainer.step(state_of(trainer), batch)
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (0, 0)


def test_a_step_without_a_finite_update_changes_nothing_but_its_count():
    trainer, batch = trainer_of(), batch_of()
    after, metrics = trainer.step(state_of(trainer), batch._replace(rewards=np.nan * batch.rewards))
    assert np.isnan(metrics["loss"])
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (1, 1)
    before = state_of(trainer)
    jax.tree.map(np.testing.assert_array_equal, after, before._replace(step=jnp.int32(1)))


def _unjudged(batch, rows):
    """Returns a batch without the tokens of some rows, as where they could not be judged."""
    mask = np.asarray(batch.rows.completion_mask).copy()
    mask[rows] = False
    return with_rows(batch, completion_mask=jnp.asarray(mask))


@pytest.mark.nightly
@pytest.mark.samples("3", gate=())
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_of_whose_batch_nothing_was_judged_is_not_taken(count):
    trainer = trainer_of({"kl_coefficient": 0.1, "entropy_coefficient": 0.1})
    before, _ = trainer.step(state_of(trainer), batch_of())  # Momentum moves parameters, too.
    before = jax.tree.map(np.asarray, before)
    state = jax.tree.map(jnp.array, before)
    for _ in range(count):
        state, metrics = trainer.step(state, _unjudged(batch_of(), slice(None)))
        assert (metrics["unjudged_updates"], metrics["skipped_updates"]) == (1, 0)
        assert np.isnan(metrics["reward_mean"])
        assert np.isnan(metrics["reward_max"])
    jax.tree.map(np.testing.assert_array_equal, state, before._replace(step=1 + count))
    after, metrics = trainer.step(state, batch_of())
    assert (metrics["unjudged_updates"], metrics["reward_mean"]) == (0, batch_of().rewards.mean())
    assert not np.array_equal(
        after.params["final_norm"]["scale"], before.params["final_norm"]["scale"]
    )


@pytest.mark.gate
def test_the_updates_of_a_step_with_judged_completions_are_taken():
    trainer, batch = trainer_of({"kl_coefficient": 0.1}, TWICE), batch_of(UNEVEN, updates=2)
    after, metrics = trainer.step(state_of(trainer), _unjudged(batch, slice(8, None)))
    assert (metrics["unjudged_updates"], metrics["skipped_updates"]) == (1, 0)
    assert after.opt_state[1][0].count == 1
    assert np.isfinite(metrics["reward_mean"])


@pytest.mark.nightly
def test_the_compiled_step_takes_the_same_step():
    trainer = trainer_of(HELD, TWICE)
    largest = Batching("padded", 16, 8, 2, 0).largest()
    compiled = trainer.compile_step(trainer.abstract(), largest)
    batch = batch_of(UNEVEN)
    assert_close(compiled(state_of(trainer), batch)[0], trainer.step(state_of(trainer), batch)[0])


@pytest.mark.nightly
def test_with_lora_only_adapters_are_trained_and_have_optimizer_state_and_a_reference():
    model = dataclasses.replace(MODEL, lora=Lora(rank=2, alpha=4.0, targets=("q", "o", "down")))
    params = tiny.params(model)
    trainer = trainer_of(HELD, model=model)
    state, batch = state_of(trainer, params), batch_of(params=params, model=model)
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


@pytest.mark.gate
def test_a_step_overwrites_adapters_and_leaves_the_frozen_base_where_it_is():
    adapted = Lora(rank=2, alpha=4.0, targets=("q", "o", "down"))
    model = dataclasses.replace(MODEL, lora=adapted)
    trainer = trainer_of(HELD, model=model)
    state = trainer.begin(trainer.start(tiny.params(model)))
    trained, frozen = map(jax.tree.leaves, lora.split(state.params))
    after, _ = trainer.step(state, batch_of(params=tiny.params(model), model=model))
    assert all(x.is_deleted() for x in trained)
    kept = jax.tree.leaves(lora.split(after.params)[1])
    assert all(map(operator.is_, frozen, kept))


@pytest.mark.nightly
def test_the_frozen_base_is_held_in_the_dtype_of_the_computation_with_the_same_bits():
    adapted = Lora(rank=2, alpha=4.0, targets=("q", "o", "down"))
    model = dataclasses.replace(MODEL, lora=adapted, dtype="bfloat16")
    params = tiny.params(model)
    trainer, batch = trainer_of(HELD, model=model), batch_of(params=params, model=model)
    state = trainer.begin(trainer.start(params))
    trained, frozen = lora.split(state.params)
    assert {str(x.dtype) for x in jax.tree.leaves(trained)} == {"float32"}
    assert {str(x.dtype) for x in jax.tree.leaves(frozen)} == {"bfloat16", "float32"}
    like = trainer.abstract().params
    assert jax.tree.map(lambda x: x.dtype, state.params) == jax.tree.map(lambda x: x.dtype, like)
    whole = state._replace(params=lora.join(jax.tree.map(jnp.copy, trained), lora.split(params)[1]))
    after, metrics = trainer.step(jax.tree.map(jnp.copy, state), batch)
    expected, expected_metrics = trainer.step(jax.tree.map(jnp.copy, whole), batch)
    one, other = (lora.split(found.params)[0] for found in (after, expected))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    jax.tree.map(np.testing.assert_array_equal, metrics, expected_metrics)


def test_a_step_takes_its_state_over():
    trainer = trainer_of()
    state, batch = state_of(trainer), batch_of()
    trainer.step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
