"""Score centering, by enumeration of everything that a sampler can draw, in float64."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms import centering
from rl_sync.algorithms.algorithm import CORRECTIONS, LOSSES, Algorithm
from rl_sync.algorithms.returns import AdvantageEstimate
from rl_sync.learning import objective
from rl_sync.learning.forward import Outputs
from rl_sync.token_records import NEVER
from rl_sync.types import Rows

pytestmark = pytest.mark.gate

VOCAB = 12
EVERY = np.arange(VOCAB)
LOSS = objective.LossConfig(Algorithm(), 1, 4, (), 0)
TOKENWISE = sorted(name for name, one in LOSSES.items() if not one.of_sequences)
CORRECTED = sorted(name for name, one in CORRECTIONS.items() if not one.of_sequences)
NUMBERS = np.random.default_rng(3)
POLICY, SAMPLER, START = NUMBERS.normal(0, 1.5, (3, VOCAB))
SOME = np.array([0, 2, 3, 7, 8, 11])


def centered(**changes):
    """Makes an algorithm of a policy term alone."""
    return Algorithm(
        **{"loss": "reinforce", "aggregation": "token_mean", "kl_coefficient": 0.0, **changes}
    )


class Draw(NamedTuple):
    """A token to draw: who draws it, among which tokens, with which advantage."""

    sampler: np.ndarray
    policy: np.ndarray
    start: np.ndarray
    kept: np.ndarray
    advantage: float


def draw(advantage=1.0, kept=EVERY, sampler=SAMPLER, start=START):
    """Makes a draw of one of the tokens `kept`."""
    return Draw(sampler, POLICY, start, np.isin(EVERY, kept), advantage)


def _log_softmax(logits, of):
    return jax.nn.log_softmax(jnp.where(of.kept, logits, -1e30))


def recorded(logprobs, k):
    """Returns the k best tokens, and log-probabilities as explorers record them."""
    best, ids = jax.lax.top_k(logprobs, k)
    rest = jnp.where(jnp.isin(EVERY, ids), -jnp.inf, logprobs)
    return ids, jnp.append(best, jax.nn.logsumexp(rest))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient(algorithm, k, updates, of):
    q, of_start = _log_softmax(of.sampler, of), _log_softmax(of.start, of)
    ids, sampler = (jnp.asarray(EVERY), q) if k is None else recorded(q, k)
    each = (VOCAB, 1)

    def at_each(values):
        return jnp.broadcast_to(values, (*each, len(values)))

    rows = Rows(
        tokens=jnp.asarray(EVERY)[:, None],
        completion_mask=jnp.ones(each, bool),
        behavior_logprobs=q[:, None],
        policy_versions=jnp.zeros(each, int),
        sampler_logprobs=at_each(sampler),
        sampler_ids=None if k is None else at_each(ids),
    )
    known = objective.BatchExperience(
        rows,
        jnp.ones(each, int),
        AdvantageEstimate(jnp.broadcast_to(of.advantage, each), None),
        VOCAB * jnp.exp(q)[:, None],
    )
    if objective.needs_proximal(algorithm, updates):
        known = known._replace(
            proximal_logprobs=of_start[:, None],
            proximal_sampler=at_each(of_start if k is None else centering.with_rest(of_start[ids])),
        )
    totals = objective.totals(dataclasses.replace(LOSS, algorithm=algorithm), known, VOCAB)

    def loss(logits):
        logprobs = _log_softmax(logits, of)
        distribution = at_each(logprobs[ids]) if algorithm.centers else None
        outputs = Outputs(logprobs[:, None], jnp.zeros(each), None, distribution)
        return objective.policy_loss(algorithm, outputs, known, totals)[0]

    return jax.grad(loss)(of.policy)


def expected_gradient(algorithm, of, k=None, updates=1):
    """Sums the gradients of all tokens' losses, each with its probability under the sampler.

    Args:
      k: number of the sampler's best tokens that are known; None for all.
      updates: updates of a step; with several, the policy at its start is another one.
    """
    with jax.enable_x64(True):
        return np.asarray(_gradient(algorithm, k, updates, of))


def _corrected(name):
    return dict(zip(("loss", "correction"), name.split("/"), strict=True))


@pytest.mark.parametrize(
    ("name", "proximal"),
    [
        *((f"{loss}/", "behavior") for loss in TOKENWISE),
        *((f"reinforce/{name}", "start") for name in CORRECTED),
        ("reinforce/token_truncation,token_mask", "behavior"),
        ("ppo_clip/token_truncation", "start"),
        ("ppo_clip/token_truncation", "interpolated"),
        ("cispo/token_mask", "interpolated"),
    ],
)
def test_the_expected_gradient_of_a_centered_loss_is_zero(name, proximal):
    algorithm = centered(**_corrected(name), proximal=proximal, score_centering="exact")
    for of in (draw(1.3), draw(-0.7), draw(1.3, kept=SOME), draw(-0.7, kept=SOME)):
        found = expected_gradient(algorithm, of, updates=2)
        np.testing.assert_allclose(found, 0, atol=1e-12)


@pytest.mark.parametrize("name", ["reinforce/", "reinforce/token_truncation", "ppo_clip/"])
def test_without_centering_a_policy_drifts(name):
    algorithm = centered(**_corrected(name))
    assert np.abs(expected_gradient(algorithm, draw())).max() > 0.01


def test_an_untruncated_weight_needs_no_centering():
    """Its expectation under the sampler is that under the policy, Σ p ∇ log p = 0."""
    algorithm = centered(loss="ppo_clip", clip_low=1.0, clip_high=1e9)
    np.testing.assert_allclose(expected_gradient(algorithm, draw()), 0, atol=1e-12)


def _published(correction, p, q, k, limit=2.0, low=0.5, high=5.0):
    """Returns m and α of arXiv:2609.20807 for the sampler's k best tokens, by its table."""
    best = np.argsort(-q, kind="stable")[:k]
    p, q = p[best], q[best]
    rho = (1 - q.sum()) / max(1 - p.sum(), 1e-6)
    m, alpha = {
        "": (q, rho),
        "token_truncation": (np.minimum(p, limit * q), min(1, limit * rho)),
        "masked_ratio": (
            np.where((low <= p / q) & (p / q <= high), p, 0),
            float(low <= 1 / rho <= high),
        ),
    }[correction]
    return best, m - alpha * p


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("", {}),
        ("token_truncation", {"correction": "token_truncation"}),
        ("masked_ratio", {"loss": "ppo_clip", "clip_high": 1e9, "correction": "token_mask"}),
    ],
)
def test_coefficients_of_the_best_tokens_are_those_of_the_published_table(name, changes, k):
    """Subtracts Σ_H (m − α p) ∇ log p, where ∇ log p(v) = e_v − p, from the uncentered gradient."""
    changes = {"clip_low": 1.0, **changes}
    p, q = (np.exp(x - np.logaddexp.reduce(x)) for x in (POLICY, SAMPLER))
    best, coefficients = _published(name, p, q, k)
    subtracted = np.zeros(VOCAB)
    for token, coefficient in zip(best, coefficients, strict=True):
        subtracted += coefficient * ((token == EVERY) - p)
    plain = expected_gradient(centered(**changes), draw())
    found = expected_gradient(centered(**changes, score_centering="topk"), draw(), k=k)
    np.testing.assert_allclose(found, plain + subtracted, atol=1e-12)


def test_the_bias_of_the_best_tokens_shrinks_with_their_number():
    plain = expected_gradient(centered(), draw())
    algorithm = centered(score_centering="topk")
    bias = [np.abs(expected_gradient(algorithm, draw(), k=k)).sum() for k in (2, 6, 9, 11)]
    assert np.abs(plain).sum() > bias[0]
    assert bias == sorted(bias, reverse=True)
    np.testing.assert_allclose(bias[-1], 0, atol=1e-12)  # A single other token is ρ · p exactly.


@pytest.mark.parametrize("name", ["reinforce/", "reinforce/token_mask", "sapo/"])
def test_tokens_outside_the_best_have_no_bias_where_they_are_a_multiple_of_the_policy(name):
    """The tail of the sampler is half that of the policy, token by token."""
    ids = np.argsort(-POLICY)[:4]
    sampler = POLICY - np.log(2)
    sampler[ids] = np.log(np.exp(SAMPLER[ids]) + np.exp(POLICY[ids]).max())
    algorithm = centered(**_corrected(name), score_centering="topk")
    found = expected_gradient(algorithm, draw(sampler=sampler), k=4)
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_a_nucleus_smaller_than_the_recorded_tokens_leaves_nothing_to_the_others():
    algorithm = centered(score_centering="topk")
    found = expected_gradient(algorithm, draw(kept=SOME), k=8)
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_a_sampler_without_a_record_changes_nothing():
    policy = jnp.log(jnp.array([[[0.5, 0.3]]]))

    @jax.jit
    def drift(policy):
        never = jnp.full((1, 1, 3), NEVER)
        outcomes = centering.outcomes(policy, never, None)
        return centering.drift(lambda logprobs, *_: -logprobs, policy, outcomes)

    np.testing.assert_allclose(drift(policy), 0, atol=1e-12)


@pytest.mark.parametrize("k", [VOCAB, 5])
def test_the_size_of_the_drift_is_that_of_its_gradient_and_0_where_the_sampler_is_the_policy(k):
    @jax.jit
    def size_and_gradient(sampler):
        ids, behavior = recorded(jax.nn.log_softmax(sampler), k)
        behavior = behavior[:k] if k == VOCAB else behavior

        def term(logits):
            known = jax.nn.log_softmax(logits)[ids][None, None]
            outcomes = centering.outcomes(known, behavior[None, None], None)
            found = centering.drift(lambda logprobs, *_: -logprobs, known, outcomes)
            return jnp.squeeze(jnp.stack(found))

        drift = jax.grad(lambda logits: term(logits)[0])(jnp.asarray(POLICY))
        return term(jnp.asarray(POLICY))[1], jnp.abs(drift).sum()

    np.testing.assert_allclose(size_and_gradient(POLICY), 0, atol=1e-5)
    size, gradient = size_and_gradient(SAMPLER)
    np.testing.assert_allclose(size, gradient, rtol=1e-4)
    assert size > 0.1
