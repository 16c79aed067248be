"""Pairs of preference: their loss by hand, whatever the layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.preference import bradley_terry
from rl_sync.learning import pairs
from rl_sync.learning.rows.batching import Batching
from rl_sync.types import NO_LEASE, Group

pytestmark = pytest.mark.gate

LENGTHS = [(2, 5, 3), (2, 4, 1), (1, 3, 3), (3, 6, 2)]  # Prompt, chosen and rejected completion.
T = 12
MARGINS = [0.0, 1.5, 0.0, 0.5]


def _group(number):
    prompt, *completions = LENGTHS[number]
    tokens, mask = np.zeros((2, T), np.int32), np.zeros((2, T), bool)
    for row, length in enumerate(completions):
        tokens[row, : prompt + length] = 1 + number * 20 + np.arange(prompt + length) + 10 * row
        mask[row, prompt : prompt + length] = True
    return Group(
        lease_id=NO_LEASE,
        ordinal=number,
        prompt_id=NO_LEASE,
        explorer=0,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.zeros((2, T), np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.array([MARGINS[number], 0], np.float32),
    )


def _batch(kind):
    made = Batching(kind, trajectories=8, row_tokens=T, updates=1, microbatch_rows=0)
    return made.batch([_group(i) for i in range(4)])


def _scalars(tokens):
    return jnp.sin(0.7 * tokens)


def _expected():
    scores = []
    for number, (prompt, *lengths) in enumerate(LENGTHS):
        last = [number * 20 + prompt + n + 10 * row for row, n in enumerate(lengths)]
        scores.append(np.sin(0.7 * np.array(last)))
    return np.array(scores)


def test_bradley_terry_by_hand():
    loss = bradley_terry(jnp.array([2.0, 0.0]), jnp.array([0.0, 0.0]), jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(loss, [np.log1p(np.exp(-2)), np.log1p(np.exp(1))], rtol=1e-6)


def test_the_loss_compares_scores_at_the_last_tokens_of_each_pair():
    known, described = pairs.prepare(_batch("padded"))
    loss, metrics = pairs.pair_loss(_scalars(known.rows.tokens), known, 4)
    gap = np.subtract(*_expected().T)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-(gap - MARGINS))).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["pair_accuracy"], (gap > 0).mean())
    np.testing.assert_allclose(metrics["score_gap"], gap.mean(), rtol=1e-5)
    assert described["chosen_tokens_mean"] == 4.5
    assert described["rejected_tokens_mean"] == 2.25


def test_neither_the_layout_nor_microbatches_change_the_loss():
    def loss_of(batch, parts):
        known, _ = pairs.prepare(batch)
        some = [jax.tree.map(lambda x, part=part: x[part], known) for part in parts]
        return sum(pairs.pair_loss(_scalars(one.rows.tokens), one, 4)[0] for one in some)

    whole = loss_of(_batch("padded"), [slice(None)])
    halves = loss_of(_batch("padded"), [slice(0, 4), slice(4, 8)])
    packed = _batch("packed")
    assert packed.rows.tokens.shape[0] < 8
    np.testing.assert_allclose([halves, loss_of(packed, [slice(None)])], whole, rtol=1e-6)


@pytest.mark.samples("packed", gate=("padded",))
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_the_spread_of_scores_is_that_of_all_trajectories_and_0_if_they_are_equal(kind):
    rows = _batch(kind).rows
    described = pairs.score_metrics(_scalars(rows.tokens), rows)
    np.testing.assert_allclose(described["reward_mean"], _expected().mean(), rtol=1e-5)
    np.testing.assert_allclose(described["reward_std"], _expected().std(), rtol=1e-5)
    for score in np.float32([0.7, 99.9, -1 / 3, 1e6 + 0.3]):
        elsewhere = jnp.where(rows.completion_mask, score, jnp.nan)
        described = pairs.score_metrics(elsewhere, rows)
        assert (described["reward_mean"], described["reward_std"]) == (score, 0)


@pytest.mark.nightly
def test_a_tie_is_right_by_half():
    known, _ = pairs.prepare(_batch("padded"))
    _, metrics = pairs.pair_loss(jnp.ones((8, T)), known, 4)
    assert metrics["pair_accuracy"] == 0.5
