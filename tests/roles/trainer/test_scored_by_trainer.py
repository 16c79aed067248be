"""With `rollout.score=trainer` the trainer scores tokens by the weights that drew them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.drawing_versions import KeptVersions
from rl_sync.models.config import Lora
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.training import (
    ALGORITHM,
    MODEL,
    PARAMS,
    TWICE,
    batch_of,
    logprobs_of,
    state_of,
    trainer_of,
    with_rows,
)

PLAIN = {"name": "sgd", "b1": 0.0, "learning_rate": 0.2, "updates_per_batch": 1}
NEVER_STALE = KeptVersions(interval=1, start=0, count=0)


def spoiled(batch):
    """Returns the batch with log-probabilities that no weights gave."""
    behavior = np.where(batch.rows.completion_mask, -3.0, 0.0).astype(np.float32)
    return with_rows(batch, behavior_logprobs=behavior)


def drawn_by(batch, versions):
    """Returns the batch with the given version for the tokens of each row."""
    of_rows = np.resize(versions, len(batch.rows.tokens))[:, None]
    return with_rows(
        batch, policy_versions=np.where(batch.rows.completion_mask, of_rows, -1).astype(np.int32)
    )


def step(batch, kept, optimizer=PLAIN, state=None, **fields):
    trainer = trainer_of(optimizer=optimizer, kept_versions=kept, **fields)
    return trainer.step(state_of(trainer) if state is None else state, batch)


@pytest.mark.nightly
def test_fresh_data_of_one_update_have_no_gap_at_all_and_need_no_pass():
    batch = batch_of()
    state, metrics = step(batch, NEVER_STALE)
    again, spoiled_metrics = step(spoiled(batch), NEVER_STALE)
    assert metrics["logprob_gap"] == 0.0
    assert spoiled_metrics["logprob_gap"] == 0.0
    jax.tree.map(np.testing.assert_array_equal, state.params, again.params)
    # What explorers recorded is still compared.
    assert metrics["mismatch"] < 1e-5 < 0.5 < spoiled_metrics["mismatch"]
    trainer = trainer_of(optimizer=PLAIN, kept_versions=NEVER_STALE)
    passes = trainer.lower_step(trainer.abstract(), batch).as_text().count("tensor<16x8x8xf32>")
    with_one = trainer_of(optimizer=PLAIN, kept_versions=KeptVersions(1, 0, 1))
    more = with_one.lower_step(with_one.abstract(), batch).as_text().count("tensor<16x8x8xf32>")
    assert passes < more


@pytest.mark.nightly
@pytest.mark.parametrize("proximal", ["behavior", "start"])
def test_a_pass_before_several_updates_gives_the_logprobs_of_the_updates_own(proximal):
    algorithm = dataclasses.asdict(dataclasses.replace(ALGORITHM, proximal=proximal))
    _, metrics = step(
        spoiled(batch_of(updates=2)), NEVER_STALE, PLAIN | TWICE, algorithm={"proximal": proximal}
    )
    assert algorithm["proximal"] == proximal
    # Two programs, whose sums have another order on some processors.
    assert metrics["logprob_gap"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["kl_behavior_proximal"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.gate
def test_stale_tokens_are_scored_by_the_weights_that_drew_them():
    kept = KeptVersions(interval=1, start=0, count=2)
    trainer, states, older = trainer_of(optimizer=PLAIN, kept_versions=kept), [], []
    state = state_of(trainer)
    for _ in range(3):
        older.append(jax.tree.map(np.array, state.params))
        state, _ = trainer.step(state, drawn_by(batch_of(), [int(state.step)]))
    assert state.drawing.numbers.tolist() == [2, 1]
    for params, version in zip(state.drawing.params, (2, 1), strict=True):
        jax.tree.map(np.testing.assert_array_equal, params, older[version])
    batch = drawn_by(spoiled(batch_of()), [1, 2, 3, 1])
    by_version = [logprobs_of(MODEL, p, batch.rows.tokens, 0.8)[0] for p in older]
    by_version.append(logprobs_of(MODEL, state.params, batch.rows.tokens, 0.8)[0])
    rows, at = np.nonzero(batch.rows.completion_mask)
    expected = np.stack(by_version)[batch.rows.policy_versions[rows, at], rows, at]
    current = np.asarray(by_version[-1])[rows, at]
    _, metrics = trainer.step(state, batch)
    assert metrics["logprob_gap"] == pytest.approx(np.abs(current - expected).mean(), abs=1e-5)
    assert metrics["mismatch"] == pytest.approx(np.abs(expected + 3.0).mean(), abs=1e-4)
    assert not states


@pytest.mark.nightly
def test_weights_that_were_not_published_are_not_kept():
    kept = KeptVersions(interval=2, start=0, count=1)
    trainer = trainer_of(optimizer=PLAIN, kept_versions=kept)
    state, numbers = state_of(trainer), []
    for _ in range(4):
        state, _ = trainer.step(state, drawn_by(batch_of(), [0]))
        numbers += state.drawing.numbers.tolist()
    assert numbers == [0, 0, 2, 2]


@pytest.mark.nightly
def test_a_version_that_is_not_kept_has_the_explorers_logprobs():
    kept = KeptVersions(interval=1, start=0, count=1)
    trainer = trainer_of(optimizer=PLAIN, kept_versions=kept)
    state = state_of(trainer)._replace(step=jnp.int32(5))
    _, metrics = trainer.step(state, drawn_by(spoiled(batch_of()), [2]))
    assert metrics["logprob_gap"] > 0.5
    assert np.isnan(metrics["mismatch"])


@pytest.mark.nightly
def test_without_it_the_mismatch_is_that_of_fresh_tokens_alone():
    _, fresh = step(batch_of(), None)
    assert fresh["mismatch"] == pytest.approx(float(fresh["logprob_gap"]), abs=1e-7)
    state = state_of(trainer_of(optimizer=PLAIN))._replace(step=jnp.int32(1))
    _, stale = step(drawn_by(spoiled(batch_of()), [0]), None, state=state)
    assert np.isnan(stale["mismatch"])
    state = state_of(trainer_of(optimizer=PLAIN))._replace(step=jnp.int32(1))
    half = drawn_by(spoiled(batch_of()), [0, 1])
    _, mixed = step(half, None, state=state)
    logprobs = np.asarray(logprobs_of(MODEL, PARAMS, half.rows.tokens, 0.8)[0])
    of_fresh = half.rows.completion_mask & (half.rows.policy_versions == 1)
    assert mixed["mismatch"] == pytest.approx(np.abs(logprobs + 3.0)[of_fresh].mean(), abs=1e-4)


@pytest.mark.gate
def test_only_adapters_are_kept_of_a_model_with_adapters():
    model = dataclasses.replace(MODEL, lora=Lora(2, 4.0))
    trainer = trainer_of(model=model, optimizer=PLAIN, kept_versions=KeptVersions(1, 0, 2))
    state = state_of(trainer, tiny.params(model))
    sizes = [sum(x.size for x in jax.tree.leaves(one)) for one in state.drawing.params]
    assert max(sizes) < 0.5 * sum(x.size for x in jax.tree.leaves(state.params))


@pytest.mark.nightly
@pytest.mark.parametrize("microbatch_rows", [0, 4])
def test_a_mesh_scores_as_one_device_does(microbatch_rows):
    batch = drawn_by(spoiled(batch_of()), [0, 1])
    results = []
    for on in (layout(), layout(data=2, tensor=2)):
        trainer = trainer_of(
            optimizer=PLAIN,
            kept_versions=KeptVersions(1, 0, 1),
            layout=on,
            microbatch_rows=microbatch_rows,
        )
        state, _ = trainer.step(state_of(trainer, tiny.params(MODEL)), drawn_by(batch_of(), [0]))
        _, metrics = trainer.step(state, batch)
        results.append(jax.device_get(metrics))
    for name in ("logprob_gap", "mismatch", "loss"):
        assert results[0][name] == pytest.approx(results[1][name], abs=1e-5)
