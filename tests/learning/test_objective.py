import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms import returns, sequences
from rl_sync.algorithms.algorithm import (
    ADVANTAGES,
    AGGREGATIONS,
    ALGORITHMS,
    CORRECTIONS,
    KL_ESTIMATORS,
    LOSSES,
    takes,
)
from rl_sync.learning import credit, objective
from rl_sync.learning.forward import Outputs
from rl_sync.types import Packing, Rows, TrainBatch
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import LENGTHS, MASK, VALUES, packed

GROUP_SIZE, MAX_TOKENS = 4, 10
OF_POLICIES = sorted(name for name, one in ALGORITHMS.items() if not one.scores)
STALENESS = np.random.default_rng(0).integers(0, 4, MASK.shape)
ENTROPY = np.random.default_rng(1).random(MASK.shape)
COLUMNS = ("logprobs", "behavior_logprobs", "old_logprobs", "ref_logprobs", "values")
IN_ORDER = np.arange(len(MASK))
# As many rows as there are trajectories, and no longer: the same operations serve both layouts.
SHARED_ROWS = [[0], [], [1, 2, 3, 4], [], [5], [6], [7], [], [8], [9, 10], [], [11]]
PADDED = ({name: VALUES[name] for name in COLUMNS}, MASK, None, STALENESS, ENTROPY)

# Parts that algorithms share, besides the pieces in the tables.
SHARED = (
    (sequences, "backward_sums"),
    (returns, "backward_sums"),
    (sequences, "totals"),
    (credit, "trajectory_totals"),
    (credit, "_is_truncated"),
    (credit, "_at_tokens"),
    (credit, "_token_metrics"),
    (credit, "_trajectory_metrics"),
)


def _program(function):
    sizes = ("count", "dual_clip", "group_size", "loss", "sequence_count")
    return jax.jit(function, static_argnames=[name for name in sizes if takes(function, name)])


@pytest.fixture(autouse=True, scope="module")
def _parts_are_programs():
    """Compiles each part once for all algorithms that have it, and not each of its operations."""
    metrics = _program(objective._metrics)

    def without_estimate(known, totals, **policies):  # Of many shapes, and not for metrics.
        return metrics(known._replace(estimate=None), totals, **policies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "_metrics", without_estimate)
        for module, name in SHARED:
            patch.setattr(module, name, _program(getattr(module, name)))
        for table in (ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL_ESTIMATORS, LOSSES):
            for piece in table.values():
                patch.setitem(vars(piece), "function", _program(piece.function))
        yield


summary = compiled(objective.summary)


def _loss_of(algorithm):
    return objective.LossConfig(algorithm, GROUP_SIZE, MAX_TOKENS, (), 0)


def _packed(values, fill=0.0):
    return packed(values, fill=fill, rows=SHARED_ROWS, padding=0)


def _several_in_a_row():
    columns = {name: _packed(VALUES[name], 7.0)[0] for name in COLUMNS}
    _, mask, sequences = _packed(VALUES["logprobs"])
    return columns, mask, sequences, _packed(STALENESS)[0], _packed(ENTROPY)[0]


def _known(
    algorithm, columns, mask, sequences, staleness, rewards=VALUES["rewards"], order=IN_ORDER
):
    """Makes the inputs of a batch of the reference's rollouts, with a reference model."""
    asarray = functools.partial(jnp.asarray, dtype=jnp.float32)
    behavior, proximal, ref, values = (asarray(columns[name]) for name in COLUMNS[1:])
    nothing = jnp.zeros(mask.shape, jnp.int32)
    packing = None if sequences is None else Packing(nothing, sequences)
    rows = Rows(nothing, jnp.asarray(mask), behavior, nothing, packing)
    rewards, baselines = rewards[order], rewards[::-1][order]
    estimate, weights, metrics = credit.give(
        _loss_of(algorithm),
        TrainBatch(rows, asarray(rewards), baselines=asarray(baselines)),
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
    totals = objective.totals(_loss_of(algorithm), known, len(VALUES["rewards"]))
    arguments = jax.device_get((columns["logprobs"].astype(np.float32), entropy, known))

    def differentiate(logprobs, entropy, known):
        def loss_of(logprobs):
            return objective.policy_loss(algorithm, Outputs(logprobs, entropy, None), known, totals)

        (loss, metrics), gradient = jax.value_and_grad(loss_of, has_aux=True)(logprobs)
        return jax.device_get((gradient, {"loss": loss, **metrics}))

    results = [
        differentiate(*jax.tree.map(lambda x, rows=rows: x[rows], arguments))
        for rows in parts or [slice(None)]
    ]
    gradient = np.concatenate([gradient for gradient, _ in results])
    metrics = jax.tree.map(
        lambda *x: np.asarray(sum(x))[None], *(metrics for _, metrics in results)
    )
    if (of_tokens := of_batch.get(credit.TOKEN_ADVANTAGES)) is not None:
        whole = np.zeros(MASK.shape)
        whole[MASK[order]] = np.asarray(of_tokens)[np.asarray(mask)]
        of_batch[credit.TOKEN_ADVANTAGES] = whole
    return gradient, summary(metrics) | jax.device_get(of_batch)


@pytest.mark.nightly
@pytest.mark.samples("cispo", "gmpo", "gspo", "ppo")
@pytest.mark.parametrize("name", OF_POLICIES)
def test_neither_microbatches_nor_the_layout_change_anything(name):
    algorithm = dataclasses.replace(ALGORITHMS[name], kl_coefficient=0.1, entropy_coefficient=0.1)
    gradient, metrics = _step(algorithm, PADDED)
    assert np.any(gradient)
    halves = [slice(0, 6), slice(6, 12)]
    # Pairs of preference stay together.
    parts, rows = ([slice(0, 4), slice(4, 12)], None) if name == "dpo" else (halves, halves)
    halved, halved_metrics = _step(algorithm, PADDED, parts)
    np.testing.assert_allclose(halved, gradient, atol=1e-6)
    others, others_metrics = _step(algorithm, _several_in_a_row(), rows)
    np.testing.assert_allclose(others, _packed(gradient)[0], atol=1e-6)
    for key, value in metrics.items():
        for other in (halved_metrics, others_metrics):
            np.testing.assert_allclose(other[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.samples("grpo", "sft")
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
        totals = objective.totals(_loss_of(algorithm), known, 12, kl_coefficient=np.float32(weight))
        gradient = jax.grad(
            lambda logprobs, totals=totals: objective.policy_loss(
                algorithm, Outputs(logprobs, entropy, None), known, totals
            )[0]
        )
        of.append(np.asarray(gradient(columns["logprobs"].astype(np.float32))))
    np.testing.assert_allclose((of[0] - of[1])[MASK], 0.5 / MASK.sum(), rtol=1e-3)


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


def test_what_is_left_out_is_in_neither_the_divergence_nor_the_entropy():
    """k1's gradient is β / rows at each token of what is left; rows that are left out count there.

    The correction rejects each token, but of the policy's term alone.
    """
    algorithm = _changed(
        aggregation="sequence_sum_mean",
        kl_estimator="k1",
        kl_coefficient=0.6,
        entropy_coefficient=0.5,
        correction="token_mask",
        token_low=0.999,
        token_high=1.0,
    )
    columns, mask, sequences, staleness, entropy = PADDED
    known, _ = _known(algorithm, columns, mask, sequences, staleness)
    kept = np.resize([1.0, 0.0, 0.0], (12, 1)).astype(np.float32)
    known = known._replace(weights=jnp.asarray(kept))
    totals = objective.totals(_loss_of(algorithm), known, 12)

    def loss_of(logprobs, entropy):
        return objective.policy_loss(algorithm, Outputs(logprobs, entropy, None), known, totals)[0]

    inputs = columns["logprobs"].astype(np.float32), entropy.astype(np.float32)
    of_logprobs, of_entropy = jax.grad(loss_of, argnums=(0, 1))(*inputs)
    expected = kept * np.ones(MASK.shape)
    np.testing.assert_allclose(np.asarray(of_logprobs)[MASK], 0.6 / 12 * expected[MASK], atol=1e-7)
    np.testing.assert_allclose(np.asarray(of_entropy)[MASK], -0.5 / 12 * expected[MASK], atol=1e-7)


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
        "logprob_gap": np.array([0.1, 0.9], np.float32),
        "weight_mean": np.array([1.0, 1.0], np.float32),
        "weight_square": np.array([1.0, 3.0], np.float32),
        "ratio_counts": np.ones((2, objective.STALENESS_KINDS, 61), np.float32),
        "loss": np.array([1.0, 2.0], np.float32),
        "mismatch": np.array([0.01, 0.8], np.float32),
        "fresh_fraction": np.array([0.25, 1.0], np.float32),
    }
    metrics = summary(updates)
    assert metrics["mismatch"] == np.float32(0.04)
    assert "fresh_fraction" not in metrics
    assert metrics["logprob_gap"] == np.float32(0.1)
    assert (metrics["loss"], metrics["effective_sample_share"]) == (1.5, 0.5)
