"""A trainer with a critic, on its policy's trunk or with a model of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.learning.forward import RowInputs
from rl_sync.learning.learning_settings import CriticConfig
from rl_sync.models import heads, lora
from rl_sync.models.config import Lora
from tests.models import tiny
from tests.roles.trainer.training import (
    HELD,
    MODEL,
    PARAMS,
    TWICE,
    UNEVEN,
    assert_close,
    batch_of,
    comparable,
    state_of,
    trainer_of,
)

CRITIC = CriticConfig("own", learning_rate=None, coefficient=0.5, clip=0.2, warmup_steps=0)
PPO = dataclasses.asdict(ALGORITHMS["ppo"]) | {"allow_unsafe": True}
KINDS = ("own", "head")
_scalars = jax.jit(heads.token_scalars, static_argnums=0)


def _ppo(kind, critic=(), algorithm=(), **fields):
    """Makes a trainer of two updates a step, with a reference."""
    critic = dataclasses.replace(CRITIC, model=kind, **dict(critic))
    return trainer_of({**PPO, **HELD, **dict(algorithm)}, TWICE, critic=critic, **fields)


def _with_head(state):
    """The state with another head than the blank one, which would value everything alike."""
    kernel = jnp.linspace(-1, 1, MODEL.embed_dim)
    head = {heads.HEAD: {"kernel": kernel, "bias": jnp.float32(0.3)}}
    critic = state.critic._replace(params={**state.critic.params, **head})
    return state._replace(critic=critic)


@pytest.mark.nightly
def test_neither_the_layout_nor_microbatches_change_a_step_with_a_head_on_the_policy():
    """On a mesh, a critic of its own is tested so."""
    drawn_by = jax.tree.map(lambda x: 0.9 * x, PARAMS)
    results = []
    for layout, microbatch_rows in (("padded", 0), ("packed", 2)):
        trainer = _ppo("head", microbatch_rows=microbatch_rows)
        batch = batch_of(UNEVEN, layout, 2, microbatch_rows, params=drawn_by)
        state, metrics = trainer.step(_with_head(state_of(trainer)), batch)
        results.append((state, comparable(metrics, batch)))
    (state, metrics), (other, other_metrics) = results
    assert metrics.keys() == other_metrics.keys()
    assert 0 < metrics["value_clip_fraction"] < 1
    for key, value in metrics.items():
        np.testing.assert_allclose(other_metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    assert_close(state.params, other.params, atol=1e-4)
    assert_close(state.critic.params, other.critic.params, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.samples(gate=("own",))
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_update_is_that_of_the_returns_and_of_the_advantages_that_they_make(kind):
    """λ = γ = 1 makes every return the reward, and every advantage what that is above the value.

    The critic's learning rate is its own: a first step of Adam is as long.
    """
    plain = {"gae_lambda": 1.0, "whiten": False, "kl_coefficient": 0.0}
    trainer = _ppo(kind, {"learning_rate": 0.02}, plain)
    trainer = dataclasses.replace(
        trainer, optimizer=dataclasses.replace(trainer.optimizer, updates_per_batch=1)
    )
    state, batch = _with_head(state_of(trainer)), batch_of(UNEVEN)
    mask, count = batch.rows.completion_mask, batch.rows.completion_mask.sum()

    def values_of(critic, params):
        whole = critic if kind == "own" else {**params, **critic}
        return jnp.roll(_scalars(MODEL, whole, batch.rows.tokens), 1, axis=1)

    def loss_of(params, critic):
        logprobs = trainer.forward.logprobs(params, {}, RowInputs(batch.rows.tokens))
        above = batch.rewards[:, None] - jax.lax.stop_gradient(values_of(critic, params))
        errors = jnp.square(values_of(critic, params) - batch.rewards[:, None])
        return jnp.where(mask, -above * logprobs + 0.25 * errors, 0).sum() / count

    of_policy, of_critic = jax.jit(jax.grad(loss_of, (0, 1)))(state.params, state.critic.params)
    after, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(of_policy), rtol=1e-4)
    norm = metrics["critic_gradient_norm"]
    np.testing.assert_allclose(norm, optax.tree.norm(of_critic), rtol=1e-4)
    head = after.critic.params[heads.HEAD]["kernel"] - jnp.linspace(-1, 1, MODEL.embed_dim)
    np.testing.assert_allclose(head, -0.02 * jnp.sign(of_critic[heads.HEAD]["kernel"]), rtol=1e-3)


@pytest.mark.nightly
def test_the_critic_learns_the_returns_while_the_policy_is_held_and_a_snapshot_goes_on(tmp_path):
    """With what holds the policy to its reference; from a snapshot the same bits follow."""
    critic = {"warmup_steps": 20, "clip": 0.0}
    trainer = _ppo("own", critic, {"kl_target": 0.01}, microbatch_rows=8, steps=21)
    state, batch, losses = state_of(trainer), batch_of(UNEVEN), []
    for _ in range(20):
        state, metrics = trainer.step(state, batch)
        losses.append(float(metrics["value_loss"]))
    assert losses[-1] < 0.8 * losses[0]
    assert metrics["value_clip_fraction"] == 0
    jax.tree.map(np.testing.assert_array_equal, state.params, PARAMS)
    counts = [of.opt_state[1][0].count for of in (state, state.critic)]
    assert counts == [0, 40]
    assert state.kl_coefficient == 0.5
    SnapshotFolder(tmp_path).save(20, state, {})
    _, restored, _ = SnapshotFolder(tmp_path).load(20, trainer.abstract())
    expected, found = (trainer.step(one, batch) for one in (state, restored))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, found[0].params, PARAMS)))


@pytest.mark.nightly
@pytest.mark.samples("own")
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_is_not_finite_changes_neither_policy_nor_critic(kind):
    trainer, batch = _ppo(kind), batch_of(UNEVEN)
    batch = batch._replace(rewards=jnp.asarray(batch.rewards).at[0].set(jnp.nan))
    after, metrics = trainer.step(_with_head(state_of(trainer)), batch)
    assert metrics["skipped_updates"] == trainer.optimizer.updates_per_batch
    before = _with_head(state_of(trainer))._replace(step=jnp.int32(1))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.nightly
def test_with_lora_the_critic_s_own_model_is_adapters_on_the_same_base():
    model = dataclasses.replace(MODEL, lora=Lora(rank=2, alpha=4.0, targets=("q", "down")))
    params = tiny.params(model)
    trainer = _ppo("own", model=model)
    state = state_of(trainer, params)
    adapters, base = lora.split(params)
    assert jax.tree.structure(state.critic.params) == jax.tree.structure(
        {**adapters, heads.HEAD: heads.blank_scalar_head(model)}
    )
    after, _ = trainer.step(_with_head(state), batch_of(UNEVEN, params=params, model=model))
    jax.tree.map(np.testing.assert_array_equal, lora.split(after.params)[1], base)
    moved = {name: after.critic.params[name] for name in adapters}
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, moved, adapters)))
