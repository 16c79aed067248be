import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.actors.trainer import AlgorithmConfig, OptimizerConfig, Trainer
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.types import TrainBatch

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
ALGORITHM = AlgorithmConfig(
    advantage="dr_grpo", clip_low=0.2, clip_high=0.28, kl_coefficient=0.0, kl_estimator="k3"
)
OPTIMIZER = OptimizerConfig(
    learning_rate=0.01,
    warm_up_learning_rate=0.02,
    ramp_updates=0,
    b1=0.9,
    b2=0.95,
    weight_decay=0.0,
    max_gradient_norm=1.0,
    updates_per_batch=1,
)
GROUP_SIZE = 4


def _trainer(algorithm=None, optimizer=None):
    return Trainer(
        MODEL,
        dataclasses.replace(ALGORITHM, **(algorithm or {})),
        dataclasses.replace(OPTIMIZER, **(optimizer or {})),
        GROUP_SIZE,
        temperature=0.8,
    )


def _state(trainer, seed=0):
    """A trainer state past its warm-up; made anew each time, since a step donates it."""
    return trainer.begin(trainer.init(jax.random.key(seed)))


def _batch(trainer, groups=4, version=0, row_tokens=8):
    """Rows that the policy of `_state` could have drawn: 2 tokens asked, 3 or 4 answered."""
    random, rows = np.random.default_rng(1), groups * GROUP_SIZE
    tokens = random.integers(2, 7, (rows, row_tokens))
    lengths = np.where(np.arange(rows) % 3 == 0, 3, 4)
    place = np.arange(row_tokens)
    mask = (place >= 2) & (place < 2 + lengths[:, None])
    tokens = np.where(place < 2 + lengths[:, None], tokens, 0).astype(np.int32)
    params = _state(trainer).params
    logprobs, _ = token_logprobs(MODEL, params, tokens, trainer.temperature)
    return TrainBatch(
        tokens=jnp.asarray(tokens),
        completion_mask=jnp.asarray(mask),
        behavior_logprobs=jnp.where(mask, logprobs, 0),
        policy_versions=jnp.where(mask, version, -1).astype(jnp.int32),
        rewards=jnp.asarray(random.integers(0, 2, rows), jnp.float32),
    )


def _assert_close(a, b, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def _mean_logprob(params, batch, rows):
    logprobs, _ = token_logprobs(MODEL, params, batch.tokens, 0.8)
    return float(jnp.sum(jnp.where(batch.completion_mask, logprobs, 0)[rows]))


def test_a_step_makes_the_better_completions_likelier_and_the_worse_less_likely():
    trainer = _trainer()
    batch = _batch(trainer)
    before = _state(trainer)
    better, worse = np.asarray(batch.rewards) == 1, np.asarray(batch.rewards) == 0
    old = [_mean_logprob(before.params, batch, rows) for rows in (better, worse)]
    after, _ = trainer.step(before, batch)
    new = [_mean_logprob(after.params, batch, rows) for rows in (better, worse)]
    assert new[0] > old[0]
    assert new[1] < old[1]
    assert int(after.step) == 1


def test_the_first_update_is_that_of_the_plain_policy_gradient():
    """With ratios of 1, the gradient is −Σ A ∇log π over the tokens, over their count."""
    trainer = _trainer()
    batch, state = _batch(trainer), _state(trainer)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)

    def loss_of(params):
        logprobs, _ = token_logprobs(MODEL, params, batch.tokens, 0.8)
        return -jnp.sum(advantages * logprobs * batch.completion_mask) / batch.completion_mask.sum()

    gradient = jax.grad(loss_of)(state.params)
    transformation = OPTIMIZER.transformation(0.01)
    updates, _ = transformation.update(gradient, transformation.init(state.params), state.params)
    expected = optax.apply_updates(state.params, updates)
    after, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.global_norm(gradient), rtol=1e-4)
    _assert_close(after.params, expected, atol=1e-4)


def test_on_its_own_rollouts_the_policy_differs_from_its_behavior_by_nothing():
    trainer = _trainer()
    _, metrics = trainer.step(_state(trainer), _batch(trainer))
    assert abs(float(metrics["kl_behavior"])) < 1e-6
    assert metrics["clip_fraction"] == 0


def test_steps_are_deterministic_to_the_bit():
    trainer = _trainer(optimizer={"updates_per_batch": 2})
    batch = _batch(trainer)
    first, again = (trainer.step(_state(trainer), batch) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)


def test_padding_changes_nothing():
    trainer = _trainer()
    short = _batch(trainer)
    short = short._replace(**{n: getattr(short, n)[:, :6] for n in TrainBatch._fields[:4]})
    wide = {"policy_versions": -1, "completion_mask": False}
    padded = short._replace(
        **{
            n: jnp.pad(getattr(short, n), ((0, 0), (0, 5)), constant_values=wide.get(n, 0))
            for n in TrainBatch._fields[:4]
        }
    )
    (a, a_metrics), (b, b_metrics) = (trainer.step(_state(trainer), x) for x in (short, padded))
    _assert_close(a_metrics, b_metrics, atol=1e-5)
    _assert_close(a.params, b.params, atol=1e-4)


def test_several_updates_each_take_an_equal_share_of_the_groups_in_order():
    batch = _batch(_trainer())
    whole = _trainer(optimizer={"updates_per_batch": 2})
    together, _ = whole.step(_state(whole), batch)
    half = _trainer()
    apart = _state(half)
    for rows in (slice(0, 8), slice(8, 16)):
        apart, _ = half.step(apart, jax.tree.map(lambda x, rows=rows: x[rows], batch))
    _assert_close(together.params, apart.params, atol=1e-5)
    assert (int(together.step), int(apart.step)) == (1, 2)


def test_a_clipped_token_no_longer_pulls():
    """Behavior far below the policy: every ratio is above 1 + ε, so advantages > 0 are clipped."""
    trainer = _trainer()
    batch = _batch(trainer)
    batch = batch._replace(behavior_logprobs=batch.behavior_logprobs - 1.0)
    _, metrics = trainer.step(_state(trainer), batch)
    rewards = np.asarray(batch.rewards).reshape(-1, GROUP_SIZE)
    above = (rewards > rewards.mean(axis=1, keepdims=True)).reshape(-1, 1)
    mask = np.asarray(batch.completion_mask)
    np.testing.assert_allclose(metrics["clip_fraction"], (mask & above).sum() / mask.sum())
    np.testing.assert_allclose(metrics["kl_behavior"], np.exp(-1) - 1 + 1, rtol=1e-4)


def test_the_reference_is_the_policy_that_rl_started_from_and_holds_it_back():
    free, held = _trainer(), _trainer({"kl_coefficient": 10.0})
    batch = _batch(free)
    assert _state(free).ref_params is None
    start, states = _state(free).params, []
    for trainer in (free, held):
        state = _state(trainer)
        for _ in range(5):
            state, metrics = trainer.step(state, batch)
        states.append(state)
    assert "kl_reference" in metrics
    _assert_close(states[1].ref_params, start, atol=0)
    kept, _ = token_logprobs(MODEL, start, batch.tokens, 0.8)
    drift = [
        float(jnp.abs(token_logprobs(MODEL, s.params, batch.tokens, 0.8)[0] - kept).mean())
        for s in states
    ]
    assert drift[1] < 0.5 * drift[0]


def test_metrics_describe_the_batch():
    trainer = _trainer()
    state = _state(trainer)._replace(step=jnp.int32(7))
    batch = _batch(trainer, version=5)
    mask = np.asarray(batch.completion_mask)
    versions = np.asarray(batch.policy_versions).copy()
    versions[0][mask[0]] = 3
    rewards = np.concatenate([np.ones(4), [1, 0, 0, 0], np.zeros(8)])
    batch = batch._replace(
        policy_versions=jnp.asarray(versions), rewards=jnp.asarray(rewards, jnp.float32)
    )
    _, metrics = trainer.step(state, batch)
    assert metrics["reward_mean"] == 5 / 16
    np.testing.assert_allclose(metrics["reward_std"], rewards.std(), rtol=1e-6)
    assert metrics["groups_without_spread"] == 3 / 4
    np.testing.assert_allclose(metrics["completion_tokens_mean"], mask.sum(axis=1).mean())
    assert metrics["staleness_max"] == 4
    np.testing.assert_allclose(metrics["staleness_mean"], (7 - versions)[mask].mean(), rtol=1e-6)


def test_groups_without_spread_change_nothing():
    trainer = _trainer()
    batch = _batch(trainer)._replace(rewards=jnp.ones(16))
    after, _ = trainer.step(_state(trainer), batch)
    _assert_close(after.params, _state(trainer).params, atol=0)


def test_the_compiled_step_takes_the_same_step():
    trainer = _trainer()
    batch = _batch(trainer)
    compiled = trainer.compile_step(jax.eval_shape(lambda: _state(trainer)), 16, 8)
    _assert_close(compiled(_state(trainer), batch)[0], trainer.step(_state(trainer), batch)[0])


def test_a_step_takes_its_state_over():
    trainer = _trainer()
    state, batch = _state(trainer), _batch(trainer)
    trainer.step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_the_warm_up_learns_the_demonstrations_and_counts_no_step():
    trainer = _trainer()
    state, batch = trainer.init(jax.random.key(0)), _batch(trainer)
    demonstrations = batch.tokens[:4], batch.completion_mask[:4]
    state, first = trainer.warm_up_step(state, *demonstrations)
    np.testing.assert_allclose(first["loss"], np.log(7), atol=1.0)
    for _ in range(150):
        state, last = trainer.warm_up_step(state, *demonstrations)
    assert last["loss"] < 0.3 * first["loss"]
    assert int(state.step) == 0


def test_rl_starts_with_a_fresh_optimizer():
    trainer = _trainer()
    state, batch = trainer.init(jax.random.key(0)), _batch(trainer)
    state, _ = trainer.warm_up_step(state, batch.tokens, batch.completion_mask)
    moments = trainer.begin(state).opt_state
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moments))


def test_the_ramp_gives_each_update_its_share_and_no_update_is_lost():
    def moved(ramp_updates):
        """How far a weight goes an update, under a constant gradient: Adam's is the rate itself."""
        optimizer = dataclasses.replace(OPTIMIZER, ramp_updates=ramp_updates)
        transformation = optimizer.transformation(0.4)
        state, steps = transformation.init(jnp.zeros(1)), []
        for _ in range(6):
            update, state = transformation.update(jnp.ones(1), state, jnp.zeros(1))
            steps.append(float(-update[0]))
        return steps

    np.testing.assert_allclose(moved(4), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rtol=1e-4)
    np.testing.assert_allclose(moved(0), [0.4] * 6, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantage": "gae"}, r"advantage='gae' is not one of grpo, dr_grpo, rloo"),
        ({"kl_estimator": "k9"}, r"kl_estimator='k9' is not one of k1, k2, k3"),
        ({"clip_low": 0.0}, r"clip_low=0.0"),
        ({"clip_high": -1.0}, r"clip_high=-1.0"),
        ({"kl_coefficient": -0.1}, r"kl_coefficient=-0.1"),
    ],
)
def test_an_algorithm_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ALGORITHM, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": -1.0}, r"learning_rate must be at least 0, not -1.0"),
        ({"updates_per_batch": 0}, r"updates_per_batch must be above 0, not 0"),
        ({"max_gradient_norm": 0.0}, r"max_gradient_norm must be above 0"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(OPTIMIZER, **change)
