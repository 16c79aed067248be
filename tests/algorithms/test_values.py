import numpy as np

from rl_sync.algorithms import aggregation, preference, values
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import MASK, VALUES, assert_is_reference

is_value_clipped = compiled(values.is_value_clipped)
explained_variance = compiled(values.explained_variance)


def test_the_clipped_value_loss_is_the_reference_s():
    def loss_of(new):
        losses = values.clipped_value_loss(new, VALUES["values"], VALUES["ret/gae"], 0.2)
        return aggregation.token_mean(losses, MASK)

    assert_is_reference(loss_of, "value_clip_0.2", argument="new_values")


def test_the_clipped_value_loss_by_hand():
    """From 0 to 1 counts as 0.2: ½ · max(0, 0.8²) for a return of 1, ½ · max(1, 0.04) for 0."""
    loss = compiled(values.clipped_value_loss)
    losses = loss(np.ones(2), np.zeros(2), np.array([1.0, 0.0]), 0.2)
    np.testing.assert_allclose(losses, [0.32, 0.5])


def test_a_value_is_clipped_where_it_has_come_far_enough_towards_its_return_or_beyond():
    """From 0, with ε = 0.2: past 0.2 on the way to 1; not on the way away from it."""
    new = np.array([0.1, 0.5, -0.5])
    clipped = is_value_clipped(new, np.zeros(3), np.ones(3), 0.2)
    np.testing.assert_array_equal(clipped, [False, True, False])
    assert not is_value_clipped(new, np.zeros(3), np.ones(3), np.inf).any()


def test_explained_variance_by_hand():
    """Returns 0, 1, 2 have variance ⅔, errors 0, 0, 1 have 2/9; masked values are left out."""
    mask = np.array([[True, True, True, False]])
    returns = np.array([[0.0, 1.0, 2.0, np.nan]])
    found = explained_variance(np.array([[0.0, 1.0, 1.0, 5.0]]), returns, mask)
    np.testing.assert_allclose(found, 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(explained_variance(np.full((1, 4), 7.0), returns, mask), 0)
    assert np.isnan(explained_variance(returns, np.ones((1, 4)), mask))


def test_dpo_by_hand():
    """Margins β · 0 and β · 2 with β = ½: log 2, and log(1 + e⁻¹)."""
    chosen, chosen_ref = np.array([-1.0, -1.0]), np.array([-1.0, -2.0])
    rejected, rejected_ref = np.array([-2.0, -3.0]), np.array([-2.0, -2.0])
    losses = compiled(preference.dpo)(chosen, rejected, chosen_ref, rejected_ref, 0.5)
    np.testing.assert_allclose(losses, [np.log(2), np.log1p(np.exp(-1))])
