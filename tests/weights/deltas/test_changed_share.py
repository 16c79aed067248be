"""The share of values that a step changes, before there is a step."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rl_sync.weights.deltas.changed_share import WORTHWHILE, expected_share


def test_a_usual_policy_changes_a_few_of_a_hundred_values_and_a_float32_one_nearly_all():
    assert 0.01 < expected_share(1e-6, "bfloat16") < 0.05
    assert expected_share(1e-6, "bfloat16") < WORTHWHILE < expected_share(1e-6, "float32")


@pytest.mark.parametrize("learning_rate", [1e-7, 1e-6, 1e-5])
def test_the_estimate_agrees_with_rounded_steps(learning_rate):
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, 400_000)
    before = weights.astype(ml_dtypes.bfloat16)
    moved = weights + rng.choice([-learning_rate, learning_rate], len(weights))
    changed = np.mean(moved.astype(ml_dtypes.bfloat16) != before)
    assert expected_share(learning_rate, "bfloat16") == pytest.approx(changed, rel=0.15)
    assert expected_share(learning_rate, "bfloat16", weights) == pytest.approx(changed, rel=0.15)


def test_the_share_grows_with_the_step_up_to_all_values_and_zeros_are_values_too():
    shares = [expected_share(rate, "bfloat16") for rate in (0.0, 1e-8, 1e-6, 1e-4, 1.0)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert expected_share(1e-6, "bfloat16", np.zeros(10)) == 1
