import numpy as np
import pytest

from rl_sync.algorithms import algorithm, kl
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import MASK, VALUES

KL_ESTIMATORS = {name: compiled(one.function) for name, one in algorithm.KL_ESTIMATORS.items()}
adapted_coefficient = compiled(kl.adapted_coefficient)


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
def test_estimators_are_the_reference_s(name):
    ours = KL_ESTIMATORS[name](VALUES["logprobs"], VALUES["ref_logprobs"])
    np.testing.assert_allclose(
        np.where(MASK, ours, 0), np.where(MASK, VALUES[f"kl/{name}"], 0), atol=1e-6
    )


def test_k1_and_k3_have_the_divergence_as_their_mean():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    divergence = (p * np.log(p / q)).sum()
    for name in ("k1", "k3"):
        estimates = KL_ESTIMATORS[name](np.log(p), np.log(q))
        np.testing.assert_allclose((p * estimates).sum(), divergence)


@pytest.mark.parametrize(
    ("divergence", "expected"), [(0.1, 0.5), (0.11, 0.505), (5.0, 0.51), (0.0, 0.49)]
)
def test_the_coefficient_follows_the_divergence_to_its_target(divergence, expected):
    ours = adapted_coefficient(np.float32(0.5), np.float32(divergence), 0.1, 10)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
