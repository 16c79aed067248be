import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms import aggregation
from rl_sync.algorithms.masking import masked_sum
from tests.algorithms.golden import MASK, VALUES, packed

VALUES_2X3 = jnp.array([[1.0, 2.0, jnp.nan], [6.0, jnp.inf, 7.0]])
MASK_2X3 = jnp.array([[True, True, False], [True, False, False]])


def test_means_by_hand_ignore_what_is_masked():
    assert masked_sum(VALUES_2X3, MASK_2X3) == 9.0
    assert aggregation.token_mean(VALUES_2X3, MASK_2X3) == 3.0
    assert aggregation.sequence_mean(VALUES_2X3, MASK_2X3) == 3.75
    assert aggregation.sequence_sum_mean(VALUES_2X3, MASK_2X3) == 4.5
    assert aggregation.constant_mean(VALUES_2X3, MASK_2X3, 9) == 0.5


@pytest.mark.parametrize(
    ("name", "reduce"),
    [
        ("agg/token-mean", aggregation.token_mean),
        ("agg/seq-mean-token-mean", aggregation.sequence_mean),
        ("agg/seq-mean-token-sum", aggregation.sequence_sum_mean),
        (
            "agg/seq-mean-token-sum-norm",  # Summed over rows, so with one for their count.
            lambda values, mask: aggregation.constant_mean(values, mask, 10, sequence_count=1),
        ),
    ],
)
def test_reductions_are_the_reference_s(name, reduce):
    values = jnp.asarray(VALUES["logprobs"])
    np.testing.assert_allclose(reduce(values, MASK), VALUES[name], rtol=1e-6)


def test_microbatches_add_up_to_the_whole():
    values = jnp.asarray(VALUES["logprobs"])
    tokens, rows = MASK.sum(), len(MASK)
    halves = [slice(0, 7), slice(7, 12)]
    parts = sum(aggregation.token_mean(values[h], MASK[h], tokens) for h in halves)
    np.testing.assert_allclose(parts, aggregation.token_mean(values, MASK))
    parts = sum(aggregation.sequence_mean(values[h], MASK[h], rows) for h in halves)
    np.testing.assert_allclose(parts, aggregation.sequence_mean(values, MASK))


def test_sequences_in_one_row_count_like_rows():
    values, mask, sequences = packed(VALUES["logprobs"], fill=np.nan)
    ours = aggregation.sequence_mean(values, mask, 12, sequences)
    np.testing.assert_allclose(ours, VALUES["agg/seq-mean-token-mean"])


def test_nothing_under_the_mask_is_zero_and_not_nan():
    nothing = jnp.zeros_like(MASK_2X3)
    assert aggregation.token_mean(VALUES_2X3, nothing) == 0
    assert aggregation.sequence_mean(VALUES_2X3, nothing) == 0
