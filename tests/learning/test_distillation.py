"""Trainer steps that distill a teacher into the policy, beside enumeration over the vocabulary."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.rows.batching import Batching
from rl_sync.models.placement import move
from rl_sync.models.transformer import hidden_states, logits
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.training import (
    MODEL,
    PARAMS,
    assert_close,
    batch_of,
    comparable,
    group_of,
    logprobs_of,
    state_of,
    trainer_of,
)

pytestmark = pytest.mark.gate

TEACHER = dataclasses.replace(MODEL, embed_dim=4, head_dim=2, mlp_dim=4)
OF_TEACHER = jax.tree.map(lambda x: 3 * x, tiny.params(TEACHER))
ALONE = {"advantage": "none", "distillation_coefficient": 0.5}
TEMPERATURE = 0.8


def _taught(teacher=TEACHER, params=OF_TEACHER, **algorithm):
    fields = {name: algorithm.pop(name) for name in [*algorithm] if name in FIELDS}
    trainer = trainer_of(ALONE | algorithm, teachers=(teacher,), **fields)
    return trainer, trainer.taught(state_of(trainer), (params,))


FIELDS = {"offload_teachers", "microbatch_rows"}


@functools.partial(jax.jit, static_argnums=0)
def _every_logprob(model, params, tokens):
    found = logits(model, params, hidden_states(model, params, tokens))[:, :-1]
    return jnp.pad(jax.nn.log_softmax(found / TEMPERATURE), ((0, 0), (1, 0), (0, 0)))


def _divergences(params, tokens, model=TEACHER, of_teacher=OF_TEACHER):
    ours = _every_logprob(MODEL, params, tokens)
    others = _every_logprob(model, of_teacher, tokens)
    return (jnp.exp(ours) * (ours - others)).sum(axis=-1)


@pytest.mark.samples("exact", gate=("topk",))
@pytest.mark.parametrize("kind", ["exact", "topk"])
def test_the_loss_is_the_divergence_over_the_vocabulary(kind):
    """Of the seven tokens, topk compares all."""
    trainer, state = _taught(distillation=kind, distillation_top_k=7)
    batch = batch_of()
    rows = batch.rows

    def loss(params):
        of_tokens = _divergences(params, rows.tokens)
        return (
            0.5 * jnp.where(rows.completion_mask, of_tokens, 0).sum() / rows.completion_mask.sum()
        )

    expected, gradient = jax.jit(jax.value_and_grad(loss))(PARAMS)
    _, metrics = trainer.step(state, batch)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], 0, atol=1e-7)
    np.testing.assert_allclose(metrics["kl_teacher"], 2 * expected, rtol=1e-5)
    norm = np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(gradient)))
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)


def test_a_drawn_token_has_the_advantage_of_its_teacher():
    trainer, state = _taught(distillation="sampled")
    batch = batch_of()
    _, metrics = trainer.step(state, batch)
    rows = batch.rows
    others = np.asarray(logprobs_of(TEACHER, OF_TEACHER, rows.tokens, TEMPERATURE)[0])
    mask = np.asarray(rows.completion_mask)
    expected = 0.5 * (others - rows.behavior_logprobs)[mask]
    np.testing.assert_allclose(metrics["token_advantages"][mask], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["advantage_mean"], expected.mean(), rtol=1e-4)
    of_first = 0.5 * (others - rows.behavior_logprobs)[0][mask[0]].mean()
    np.testing.assert_allclose(metrics["advantages"][0], of_first, rtol=1e-4)
    delta = 2 * expected
    np.testing.assert_allclose(metrics["kl_teacher"], (np.expm1(delta) - delta).mean(), rtol=1e-4)


def _two_groups(kind):
    """Lays out a group of each of two teachers."""
    lengths = {1: (6, 5, 6, 5), 0: (1, 2, 1, 1)}
    groups = [dataclasses.replace(group_of(of), prompt_id=one) for one, of in lengths.items()]
    return Batching(kind, 8, 8, 1, 0, teachers=(0, 1)).batch(groups)


@pytest.mark.samples(gate=("exact-packed",))
@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
@pytest.mark.parametrize("algorithm", ["exact", "sampled"])
def test_each_set_has_its_own_teacher(algorithm, kind):
    models, params = (TEACHER, MODEL), (OF_TEACHER, jax.tree.map(lambda x: 2 * x, PARAMS))
    trainer = trainer_of(ALONE | {"distillation": algorithm}, teachers=models)
    _, metrics = trainer.step(trainer.taught(state_of(trainer), params), _two_groups(kind))
    rows = _two_groups("padded").rows
    mask, found = np.asarray(rows.completion_mask), []
    for one in zip(models, params, strict=True):
        if algorithm == "exact":
            found.append(np.asarray(_divergences(PARAMS, rows.tokens, *one)))
        else:
            delta = logprobs_of(*one, rows.tokens, TEMPERATURE)[0] - rows.behavior_logprobs
            found.append(np.asarray(np.expm1(delta) - delta))
    own = np.where(np.arange(8)[:, None] < 4, found[1], found[0])
    np.testing.assert_allclose(metrics["kl_teacher"], own[mask].mean(), rtol=1e-4)


def test_a_teacher_adds_to_the_reward():
    """Its share of each advantage is the same whatever the reward's."""
    batch = batch_of()
    found = {}
    for advantage in ("none", "dr_grpo"):
        trainer, state = _taught(distillation="sampled", advantage=advantage)
        found[advantage] = np.asarray(trainer.step(state, batch)[1]["token_advantages"])
    trainer = trainer_of()
    of_reward = np.asarray(trainer.step(state_of(trainer), batch)[1]["advantages"])
    mask = np.asarray(batch.rows.completion_mask)
    rest = np.broadcast_to(of_reward[:, None], mask.shape)[mask]
    np.testing.assert_allclose((found["dr_grpo"] - found["none"])[mask], rest, atol=1e-6)


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_a_policy_that_is_its_own_teacher_stays(kind):
    trainer, state = _taught(MODEL, PARAMS, distillation=kind)
    after, metrics = trainer.step(state, batch_of())
    np.testing.assert_allclose(metrics["kl_teacher"], 0, atol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], 0, atol=1e-5)
    assert_close(after.teachers, (PARAMS,), atol=0)


@pytest.mark.parametrize(("kind", "algorithm"), [("packed", "exact"), ("shared", "topk")])
def test_rows_of_several_completions_give_the_same(kind, algorithm):
    of = {"distillation": algorithm, "distillation_top_k": 3}
    found = {}
    for laid_out in ("padded", kind):
        trainer, state = _taught(**of)
        batch = batch_of(kind=laid_out)
        after, metrics = trainer.step(state, batch)
        found[laid_out] = after.params, comparable(metrics, batch)
    (params, metrics), (others, more) = found["padded"], found[kind]
    for name in ("loss", "kl_teacher", "gradient_norm"):
        np.testing.assert_allclose(more[name], metrics[name], rtol=1e-4)
    assert_close(others, params, atol=1e-5)


@pytest.mark.parametrize("kind", ["exact", "topk", "sampled"])
def test_microbatches_and_a_teacher_in_the_hosts_memory_change_nothing(kind):
    found = []
    for fields in ({}, {"microbatch_rows": 4, "offload_teachers": True}):
        trainer, state = _taught(distillation=kind, **fields)
        after, metrics = trainer.step(state, batch_of())
        found.append((after.params, metrics["loss"], metrics["kl_teacher"], after.teachers))
    assert_close(found[0], found[1])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["exact", "topk"])
def test_a_mesh_shards_both_models_and_gives_the_same(kind):
    of = ALONE | {"distillation": kind, "distillation_top_k": 3}
    found = []
    for on in ({}, {"layout": layout(fsdp=2, tensor=2)}):
        # Adam would make a whole step of a gradient that is 0 but for rounding.
        plain = {"name": "sgd", "b1": 0.0, "learning_rate": 0.1}
        trainer = trainer_of(of, plain, teachers=(TEACHER,), **on)
        start = move(jax.tree.map(jnp.copy, PARAMS), trainer.abstract().params)
        state = trainer.taught(trainer.begin(trainer.start(start)), (OF_TEACHER,))
        batch = trainer.place(batch_of())
        after, metrics = trainer.compile_step(trainer.abstract(), batch_of())(state, batch)
        if on:
            assert not after.teachers[0]["embedding"].sharding.is_fully_replicated
        found.append((jax.tree.map(np.asarray, after.params), float(metrics["kl_teacher"])))
    # Teacher's tails near the rounding of a sum in float32 count by their logarithm.
    assert_close(found[0][0], found[1][0], atol=5e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3)
