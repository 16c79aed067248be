import numpy as np
import pytest

from rl_sync.algorithms import aggregation
from rl_sync.algorithms.masking import masked_sum
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import MASK, VALUES, packed

VALUES_2X3 = np.array([[1.0, 2.0, np.nan], [6.0, np.inf, 7.0]])
MASK_2X3 = np.array([[True, True, False], [True, False, False]])


@compiled
def _reduced(values, mask):
    return {
        "sum": masked_sum(values, mask),
        "token mean": aggregation.token_mean(values, mask),
        "sequence mean": aggregation.sequence_mean(values, mask),
        "sequence sum mean": aggregation.sequence_sum_mean(values, mask),
        "constant mean": aggregation.constant_mean(values, mask, 9),
        # Summed over rows, so with one for their count.
        "constant sum": aggregation.constant_mean(values, mask, 10, sequence_count=1),
    }


def test_means_by_hand_ignore_what_is_masked():
    reduced = _reduced(VALUES_2X3, MASK_2X3)
    assert reduced["sum"] == 9.0
    assert reduced["token mean"] == 3.0
    assert reduced["sequence mean"] == 3.75
    assert reduced["sequence sum mean"] == 4.5
    assert reduced["constant mean"] == 0.5


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("agg/token-mean", "token mean"),
        ("agg/seq-mean-token-mean", "sequence mean"),
        ("agg/seq-mean-token-sum", "sequence sum mean"),
        ("agg/seq-mean-token-sum-norm", "constant sum"),
    ],
)
def test_reductions_are_the_reference_s(name, ours):
    reduced = _reduced(VALUES["logprobs"], MASK)
    np.testing.assert_allclose(reduced[ours], VALUES[name], rtol=1e-6)


def test_microbatches_add_up_to_the_whole():
    values, tokens, rows = VALUES["logprobs"], MASK.sum(), len(MASK)
    whole, halves = _reduced(values, MASK), [slice(0, 7), slice(7, 12)]
    token_mean, sequence_mean = map(compiled, (aggregation.token_mean, aggregation.sequence_mean))
    parts = sum(token_mean(values[h], MASK[h], tokens) for h in halves)
    np.testing.assert_allclose(parts, whole["token mean"])
    parts = sum(sequence_mean(values[h], MASK[h], rows) for h in halves)
    np.testing.assert_allclose(parts, whole["sequence mean"])


def test_sequences_in_one_row_count_like_rows():
    values, mask, sequences = packed(VALUES["logprobs"], fill=np.nan)
    ours = compiled(aggregation.sequence_mean)(values, mask, 12, sequences)
    np.testing.assert_allclose(ours, VALUES["agg/seq-mean-token-mean"])


def test_nothing_under_the_mask_is_zero_and_not_nan():
    reduced = _reduced(VALUES_2X3, np.zeros_like(MASK_2X3))
    assert reduced["token mean"] == 0
    assert reduced["sequence mean"] == 0
