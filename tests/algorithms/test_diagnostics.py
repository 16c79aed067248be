import numpy as np

from rl_sync.algorithms import diagnostics
from tests.algorithms.compiled import compiled

log_ratio_counts = compiled(diagnostics.log_ratio_counts, "count")
ratio_quantile = compiled(diagnostics.ratio_quantile)


def test_the_effective_share_by_hand():
    """Weights 1 and 3: (4)² / (2 · 10) = 0.8."""
    share = compiled(diagnostics.effective_sample_share)(np.float32(2), np.float32(5))
    np.testing.assert_allclose(share, 0.8)


def test_quantiles_come_from_counts_that_add_up():
    rng = np.random.default_rng(0)
    ratios = rng.normal(0.1, 0.4, (40, 50))
    kinds, mask = rng.integers(0, 3, (40, 50)), rng.random((40, 50)) < 0.8
    parts = [slice(0, 20), slice(20, 40)]
    counts = sum(log_ratio_counts(ratios[p], mask[p], kinds[p], 2) for p in parts)
    assert counts.sum() == mask.sum()
    for share in (0.05, 0.5, 0.95):
        ours = ratio_quantile(counts, share)
        for kind in range(2):  # What is beyond the last kind counts as the last.
            of_kind = ratios[mask & (np.minimum(kinds, 1) == kind)]
            np.testing.assert_allclose(ours[kind], np.exp(np.quantile(of_kind, share)), rtol=0.1)


def test_without_tokens_there_is_no_quantile_and_equal_policies_have_one():
    counts = log_ratio_counts(np.zeros((1, 4)), np.ones((1, 4), bool), np.zeros((1, 4), int), 2)
    middle = ratio_quantile(counts, 0.5)
    np.testing.assert_allclose(middle[0], 1.0, atol=1e-3)
    assert np.isnan(middle[1])


def test_ratios_beyond_the_bins_have_the_last_edge():
    far = np.array([[-40.0, 40.0, -40.0, 40.0]])
    counts = log_ratio_counts(far, np.ones((1, 4), bool), np.array([[0, 1, 0, 1]]), 2)
    np.testing.assert_allclose(ratio_quantile(counts, 0.5), np.exp([-5.0, 5.0]), rtol=1e-6)
