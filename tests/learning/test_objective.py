import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning import credit, objective
from rl_sync.types import Packing, Rows, TrainBatch
from tests.algorithms.golden import LENGTHS, MASK, VALUES, packed

GROUP_SIZE, MAX_TOKENS = 4, 10
OF_POLICIES = sorted(name for name, one in ALGORITHMS.items() if not one.scores)
STALENESS = np.random.default_rng(0).integers(0, 4, MASK.shape)
ENTROPY = np.random.default_rng(1).random(MASK.shape)
COLUMNS = ("logprobs", "behavior_logprobs", "old_logprobs", "ref_logprobs", "values")
IN_ORDER = np.arange(len(MASK))
PADDED = ({name: VALUES[name] for name in COLUMNS}, MASK, None, STALENESS, ENTROPY)


def _packed():
    columns = {name: packed(VALUES[name], fill=7.0)[0] for name in COLUMNS}
    _, mask, sequences = packed(VALUES["logprobs"])
    return columns, mask, sequences, packed(STALENESS)[0], packed(ENTROPY)[0]


def _known(
    algorithm, columns, mask, sequences, staleness, rewards=VALUES["rewards"], order=IN_ORDER
):
    """Makes the inputs of a batch of the reference's rollouts, with a reference model."""
    asarray = functools.partial(jnp.asarray, dtype=jnp.float32)
    behavior, proximal, ref, values = (asarray(columns[name]) for name in COLUMNS[1:])
    nothing = jnp.zeros(mask.shape, jnp.int32)
    packing = None if sequences is None else Packing(nothing, sequences)
    rows = Rows(nothing, jnp.asarray(mask), behavior, nothing, packing)
    rewards = asarray(rewards)
    estimate, weights, metrics = credit.give(
        algorithm,
        TrainBatch(rows, rewards[order], baselines=rewards[::-1][order]),
        group_size=GROUP_SIZE,
        max_tokens=MAX_TOKENS,
        end_ids=(),
        ref_logprobs=ref,
        values=values,
    )
    known = objective.BatchExperience(
        rows, jnp.asarray(staleness), estimate, weights, proximal, ref, values
    )
    return known, metrics


def _step(algorithm, layout, parts=None, order=IN_ORDER):
    """Computes the loss, its gradient by the logprobs, and the metrics, over parts of the rows."""
    columns, mask, sequences, staleness, entropy = layout
    known, of_batch = _known(algorithm, columns, mask, sequences, staleness, order=order)
    totals = objective.totals(algorithm, known, len(VALUES["rewards"]), MAX_TOKENS, GROUP_SIZE)
    arguments = (jnp.asarray(columns["logprobs"], jnp.float32), jnp.asarray(entropy), known)

    def differentiate(logprobs, entropy, known):
        def loss_of(logprobs):
            return objective.policy_loss(algorithm, logprobs, entropy, known, totals)

        (loss, metrics), gradient = jax.value_and_grad(loss_of, has_aux=True)(logprobs)
        return gradient, {"loss": loss, **metrics}

    results = [
        differentiate(*jax.tree.map(lambda x, rows=rows: x[rows], arguments))
        for rows in parts or [slice(None)]
    ]
    gradient = jnp.concatenate([gradient for gradient, _ in results])
    metrics = jax.tree.map(lambda *x: sum(x)[None], *(metrics for _, metrics in results))
    if (of_tokens := of_batch.get(credit.TOKEN_ADVANTAGES)) is not None:
        whole = np.zeros(MASK.shape)
        whole[MASK[order]] = np.asarray(of_tokens)[np.asarray(mask)]
        of_batch[credit.TOKEN_ADVANTAGES] = whole
    return gradient, objective.summary(metrics) | of_batch


@pytest.mark.samples("cispo", "gmpo", "gspo", "ppo")
@pytest.mark.parametrize("name", OF_POLICIES)
def test_neither_microbatches_nor_the_layout_change_anything(name):
    algorithm = dataclasses.replace(ALGORITHMS[name], kl_coefficient=0.1, entropy_coefficient=0.1)
    gradient, metrics = _step(algorithm, PADDED)
    assert np.any(gradient)
    # Pairs of preference stay together.
    half, rows = (4, None) if name == "dpo" else (6, [slice(0, 1), slice(1, 2)])
    halved, halved_metrics = _step(algorithm, PADDED, [slice(0, half), slice(half, 12)])
    np.testing.assert_allclose(halved, gradient, atol=1e-6)
    others, others_metrics = _step(algorithm, _packed(), rows)
    np.testing.assert_allclose(others, packed(gradient)[0], atol=1e-6)
    for key, value in metrics.items():
        for other in (halved_metrics, others_metrics):
            np.testing.assert_allclose(other[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", OF_POLICIES)
def test_the_order_of_groups_changes_nothing(name):
    algorithm = dataclasses.replace(ALGORITHMS[name], kl_coefficient=0.1, entropy_coefficient=0.1)
    order = IN_ORDER.reshape(-1, GROUP_SIZE)[[2, 0, 1]].ravel()
    gradient, metrics = _step(algorithm, PADDED)
    moved = jax.tree.map(lambda x: x[order], PADDED)
    others, others_metrics = _step(algorithm, moved, order=order)
    np.testing.assert_allclose(others, gradient[order], atol=1e-6)
    for key in (credit.ADVANTAGES_NAME, credit.TOKEN_ADVANTAGES):
        if key in metrics:
            metrics[key] = metrics[key][order]
    for key, value in metrics.items():
        np.testing.assert_allclose(others_metrics[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


def _changed(**change):
    return dataclasses.replace(ALGORITHMS["decoupled_ppo"], **change)


def test_what_a_correction_rejects_is_out_of_the_sum_and_stays_in_the_count():
    free, _ = _step(_changed(proximal="behavior", correction=""), PADDED)
    masked, metrics = _step(
        _changed(proximal="behavior", correction="token_mask", token_low=0.9, token_high=1.1),
        PADDED,
    )
    rejected = np.asarray(masked == 0) & MASK
    assert 0 < rejected.sum() < MASK.sum()
    np.testing.assert_allclose(masked, np.where(rejected, 0, free), atol=1e-7)
    ratio = np.exp(VALUES["logprobs"] - VALUES["behavior_logprobs"])
    outside = MASK & ((ratio < 0.9) | (ratio > 1.1))
    np.testing.assert_allclose(metrics["mask_fraction"], outside.sum() / MASK.sum(), rtol=1e-5)


def test_corrections_multiply():
    pieces = ("token_truncation", "geometric_rejection", "negative_sequence_mask")
    numbers = {"geometric_low": 0.9, "geometric_high": 1.1, "negative_drift": 1e-3}
    plain, _ = _step(_changed(correction=""), PADDED)
    apart = [_step(_changed(correction=piece, **numbers), PADDED)[0] for piece in pieces]
    together, _ = _step(_changed(correction=",".join(pieces), **numbers), PADDED)
    safe = np.where(plain == 0, 1, plain)
    expected = plain * np.prod([np.asarray(one) / safe for one in apart], axis=0)
    np.testing.assert_allclose(together, expected, atol=1e-6)
    assert 0 < np.sum(together == 0) < together.size


def test_the_weight_of_the_divergence_may_be_given():
    """k1's gradient is β / tokens at each token."""
    algorithm = _changed(kl_estimator="k1", kl_coefficient=9.0, aggregation="token_mean")
    columns, mask, sequences, staleness, entropy = PADDED
    known, _ = _known(algorithm, columns, mask, sequences, staleness)
    of = []
    for weight in (0.6, 0.1):
        totals = objective.totals(
            algorithm, known, 12, MAX_TOKENS, GROUP_SIZE, kl_coefficient=jnp.float32(weight)
        )
        gradient = jax.grad(
            lambda logprobs, totals=totals: objective.policy_loss(
                algorithm, logprobs, jnp.asarray(entropy), known, totals
            )[0]
        )
        of.append(gradient(jnp.asarray(columns["logprobs"], jnp.float32)))
    np.testing.assert_allclose(np.asarray(of[0] - of[1])[MASK], 0.5 / MASK.sum(), rtol=1e-3)


def test_the_divergence_and_the_entropy_are_reduced_like_the_loss():
    """Over sums of sequences k1's gradient is β / rows at each token, whatever their lengths."""
    still = _changed(aggregation="sequence_sum_mean", kl_estimator="k1")
    without, _ = _step(still, PADDED)
    with_kl, metrics = _step(dataclasses.replace(still, kl_coefficient=0.6), PADDED)
    np.testing.assert_allclose(np.asarray(with_kl - without)[MASK], 0.6 / 12, atol=1e-6)
    _, with_entropy = _step(dataclasses.replace(still, entropy_coefficient=0.5), PADDED)
    entropy = np.where(MASK, ENTROPY, 0).sum() / 12
    np.testing.assert_allclose(
        with_entropy["loss"], with_entropy["policy_loss"] - 0.5 * entropy, rtol=1e-4
    )
    assert metrics["kl_reference"] > 0


def test_the_metrics_are_those_of_the_reference_s_rollouts():
    _, metrics = _step(_changed(), PADDED)
    behavior, current = VALUES["behavior_logprobs"][MASK], VALUES["logprobs"][MASK]
    proximal = VALUES["old_logprobs"][MASK]

    def k3(p, q):
        return np.mean(np.exp(q - p) - 1 - (q - p))

    weights = np.exp(current - behavior)
    for name, value in {
        "kl_behavior_proximal": k3(behavior, proximal),
        "kl_proximal_current": k3(proximal, current),
        "logprob_gap": np.abs(current - behavior).mean(),
        "effective_sample_share": weights.mean() ** 2 / np.square(weights).mean(),
        "entropy": ENTROPY[MASK].mean(),
        "completion_tokens_mean": LENGTHS.mean(),
        "completion_tokens_max": 10,
        "truncated_fraction": 2 / 12,
        "reward_max": VALUES["rewards"].max(),
        "advantage_mean": VALUES["adv/grpo"][MASK].mean(),
        "advantage_std": VALUES["adv/grpo"][MASK].std(),
    }.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    of_age = weights[STALENESS[MASK] == 2]
    np.testing.assert_allclose(metrics["ratio_p50_staleness_2"], np.median(of_age), rtol=0.1)
    assert np.isnan(metrics["ratio_p50_staleness_4"])


def test_a_step_needs_the_policy_of_its_start_only_where_that_is_another():
    assert not objective.needs_proximal(ALGORITHMS["grpo"], 4)
    assert not objective.needs_proximal(ALGORITHMS["decoupled_ppo"], 1)
    assert objective.needs_proximal(ALGORITHMS["decoupled_ppo"], 2)
    assert objective.needs_proximal(ALGORITHMS["m2po"], 1)


def test_the_gap_is_that_of_the_first_update():
    updates = {
        "logprob_gap": jnp.array([0.1, 0.9]),
        "weight_mean": jnp.array([1.0, 1.0]),
        "weight_square": jnp.array([1.0, 3.0]),
        "ratio_counts": jnp.ones((2, objective.STALENESS_KINDS, 61)),
        "loss": jnp.array([1.0, 2.0]),
        "mismatch": jnp.array([0.01, 0.8]),
        "fresh_fraction": jnp.array([0.25, 1.0]),
    }
    metrics = objective.summary(updates)
    assert metrics["mismatch"] == jnp.float32(0.04)
    assert "fresh_fraction" not in metrics
    assert metrics["logprob_gap"] == jnp.float32(0.1)
    assert (metrics["loss"], metrics["effective_sample_share"]) == (1.5, 0.5)
