import jax
import numpy as np

from rl_sync.algorithms import corrections, proximal
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import MASK, VALUES, packed

OLD, BEHAVIOR = VALUES["old_logprobs"], VALUES["behavior_logprobs"]
truncated_token_weights = compiled(corrections.truncated_token_weights)
truncated_sequence_weights = compiled(corrections.truncated_sequence_weights)
sequence_rejection = compiled(corrections.sequence_rejection)
geometric_rejection = compiled(corrections.geometric_rejection)
second_moment_limit = compiled(corrections.second_moment_limit)
second_moment_mask = compiled(corrections.second_moment_mask)
negative_sequence_mask = compiled(corrections.negative_sequence_mask)
interpolated = compiled(proximal.interpolated)
RATIOS = np.log(np.array([[3.0, 0.5], [1.1, 1.0]]))  # Of two sequences: 1.5 and 1.1.
EVEN, ALL = np.zeros((2, 2)), np.ones((2, 2), bool)


def test_token_weights_are_the_reference_s():
    ours = truncated_token_weights(OLD, BEHAVIOR, 2.0)
    np.testing.assert_allclose(
        np.where(MASK, ours, 0), np.where(MASK, VALUES["is/token_truncated_2"], 0), rtol=1e-6
    )


def test_sequence_weights_are_the_reference_s():
    ours = np.broadcast_to(truncated_sequence_weights(OLD, BEHAVIOR, MASK, 2.0), MASK.shape)
    expected = np.where(MASK, VALUES["is/sequence_truncated_2"], 0)
    np.testing.assert_allclose(np.where(MASK, ours, 0), expected, rtol=1e-6)


def test_weights_by_hand():
    logprobs, behavior = np.log(np.array([[0.9, 0.2]])), np.log(np.array([[0.3, 0.4]]))
    np.testing.assert_allclose(truncated_token_weights(logprobs, behavior, 2.0), [[2.0, 0.5]])
    both = np.array([[True, True]])
    np.testing.assert_allclose(
        truncated_sequence_weights(logprobs, behavior, both, 2.0), [[1.5]], rtol=1e-6
    )
    first = np.array([[True, False]])
    np.testing.assert_allclose(truncated_sequence_weights(logprobs, behavior, first, 2.0), [[2.0]])


def test_a_token_whose_ratio_is_out_of_bounds_is_masked():
    kept = compiled(corrections.token_mask)(RATIOS, EVEN, 0.6, 2.0)
    np.testing.assert_array_equal(kept, [[False, False], [True, True]])


def test_a_sequence_is_rejected_by_its_product_or_by_its_geometric_mean():
    """Products 1.5 and 1.1; geometric means √1.5 = 1.22 and √1.1 = 1.05."""
    bounds = (0.8, 1.3)
    product = sequence_rejection(RATIOS, EVEN, ALL, *bounds)
    np.testing.assert_array_equal(product, [[False], [True]])
    mean = geometric_rejection(RATIOS, EVEN, ALL, *bounds)
    np.testing.assert_array_equal(mean, [[True], [True]])
    assert not geometric_rejection(RATIOS, EVEN, ALL, 0.9, 1.2)[0]


def test_the_second_moment_of_what_stays_is_at_most_the_limit():
    """Squares 4, 1, 0.01, 0: the mean of all is 1.25, without the 4 it is 0.34."""
    logs = np.array([[2.0, -1.0], [0.1, 0.0]])
    for limit, kept in (
        (1.3, [[True, True], [True, True]]),
        (0.5, [[False, True], [True, True]]),
        (0.1, [[False, False], [True, True]]),
    ):
        greatest = second_moment_limit(logs, EVEN, ALL, limit)
        mask = second_moment_mask(logs, EVEN, greatest)
        np.testing.assert_array_equal(mask, kept)
    mask = np.array([[False, True], [True, True]])
    assert second_moment_limit(logs, EVEN, mask, 0.5) == 1.0
    first = np.array([[True, True], [False, False]])
    assert second_moment_limit(logs, EVEN, first, 1.3) == 1.0, "a prompt's zeros do not count"


def test_only_a_bad_sequence_that_became_unlikely_is_masked():
    """Mean −log κ of the first is −0.2, of the second 0.05; only the latter is beyond 0.01."""
    logs = np.array([[0.5, -0.1], [-0.1, 0.0]])
    for advantages, kept in (
        ([[-1.0], [-1.0]], [[True], [False]]),
        ([[-1.0], [1.0]], [[True], [True]]),
    ):
        mask = negative_sequence_mask(logs, EVEN, np.array(advantages), ALL, 0.01)
        np.testing.assert_array_equal(mask, kept)


def test_sequences_in_one_row_are_judged_apart():
    old, mask, sequences = packed(VALUES["old_logprobs"])
    behavior, advantages = packed(VALUES["behavior_logprobs"])[0], packed(VALUES["adv/grpo"])[0]
    for piece in (
        lambda new, old, m, a, s: truncated_sequence_weights(new, old, m, 2.0, s),
        lambda new, old, m, a, s: sequence_rejection(new, old, m, 0.9, 1.1, s),
        lambda new, old, m, a, s: geometric_rejection(new, old, m, 0.95, 1.05, s),
        lambda new, old, m, a, s: negative_sequence_mask(new, old, a, m, 0.01, s),
    ):
        together = piece(old, behavior, mask, advantages, sequences)
        apart = piece(OLD, BEHAVIOR, MASK, VALUES["adv/grpo"], None)
        apart = np.broadcast_to(apart, MASK.shape).astype(float)
        assert len(np.unique(apart[MASK])) > 1
        np.testing.assert_allclose(np.where(mask, together, 0), packed(apart)[0], rtol=1e-6)


def test_no_gradient_flows_through_the_weights():
    gradient = compiled(
        jax.grad(lambda x: corrections.truncated_token_weights(x, BEHAVIOR, 2.0).sum())
    )(OLD)
    assert np.all(gradient == 0)


def test_the_interpolated_policy_by_hand():
    """At staleness 0 it is the behavior policy; at 1 half of the way, at 3 three quarters."""
    behavior, now = np.zeros((1, 3)), np.full((1, 3), -4.0)
    ours = interpolated(now, behavior, np.array([[0, 1, 3]]))
    np.testing.assert_allclose(ours, [[0, -2, -3]])
    gradient = compiled(jax.grad(lambda x: proximal.interpolated(x, behavior, 1).sum()))(now)
    assert np.all(gradient == 0)
