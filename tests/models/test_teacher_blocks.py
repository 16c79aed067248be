"""Divergences from a teacher, by blocks of the vocabulary, beside enumeration in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.distillation import best_divergence
from rl_sync.models.sharding import using
from rl_sync.models.vocabulary.teacher_blocks import (
    Scored,
    best_tokens,
    block_divergence,
    given_logprobs,
)
from rl_sync.models.vocabulary.token_sets import EVERYTHING, LogprobSettings, TokenSets, packed
from tests.models.meshes import layout

pytestmark = pytest.mark.gate

V, D, E, T, K = 300, 16, 8, 3, 5
BLOCKS = 4 * 128 * D  # Blocks of 128, the fewest.
WHOLE = 1 << 30


@functools.cache
def _drawn(rows=2):
    """Draws a policy, a teacher of another width, and weights of positions."""
    rng = np.random.default_rng(0)

    def scored(vocab, width):
        kernel = rng.standard_normal((vocab, width)) / np.sqrt(width)
        return Scored(*map(np.float32, (kernel, 2 * rng.standard_normal((rows, T, width)))))

    policy, teacher = scored(V, D), scored(V, E)
    return policy, teacher, np.float32(rng.standard_normal((rows, T)))


def _logprobs(of, temperature=1.0, kept=None):
    logits = np.einsum("btd,vd->btv", *map(np.float64, (of.hidden, of.kernel))) / temperature
    if kept is not None:
        logits = np.where(kept, logits, -np.inf)
    highest = logits.max(-1, keepdims=True)
    return logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))


def _kl(policy, teacher, temperature=1.0, kept=None):
    """Σ π log(π / q), and its gradient with respect to logits, by enumeration."""
    ours, others = (_logprobs(one, temperature, kept) for one in (policy, teacher))
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isfinite(ours), ours - others, 0.0)
    kl = (np.exp(ours) * terms).sum(-1)
    return kl, np.exp(ours) * (terms - kl[..., None]) / temperature


def _found(on, logits_bytes, temperature, given, sets=EVERYTHING):
    policy, teacher, weights = given

    def loss(policy):
        with using(on):
            settings = LogprobSettings(temperature, logits_bytes)
            found = block_divergence(policy, teacher, settings, sets)
        return (found * weights).sum(), found

    (_, found), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(policy)
    return found, gradient


def _assert_is_enumerated(found, given, temperature=1.0, kept=None):
    (policy, teacher, weights), (divergence, gradient) = given, found
    kl, by_logits = _kl(policy, teacher, temperature, kept)
    np.testing.assert_allclose(divergence, kl, rtol=1e-5, atol=2e-6)
    by_logits = by_logits * weights[..., None]
    by_hidden = np.einsum("btv,vd->btd", by_logits, policy.kernel)
    by_kernel = np.einsum("btv,btd->vd", by_logits, policy.hidden)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-6)
    close(gradient.hidden, by_hidden)
    close(gradient.kernel, by_kernel)


@pytest.mark.parametrize("logits_bytes", [BLOCKS, WHOLE])
def test_the_divergence_and_its_gradient_are_those_of_enumeration(logits_bytes):
    given = _drawn()
    _assert_is_enumerated(_found(layout(), logits_bytes, 0.7, given), given, 0.7)


def _sets(given, count):
    """Keeps some tokens at each position."""
    rng = np.random.default_rng(1)
    shape = (*given[2].shape, V)
    order = rng.permuted(np.broadcast_to(np.arange(V), shape), axis=-1)
    kept = order < count
    words = packed(jnp.asarray(kept.reshape(-1, V)))
    return kept, TokenSets(kept=words.reshape(*shape[:2], -1))


def test_the_divergence_over_a_sampling_set_is_that_of_both_distributions_over_it():
    given = _drawn()
    kept, sets = _sets(given, 4)
    _assert_is_enumerated(_found(layout(), BLOCKS, 1.0, given, sets), given, kept=kept)


def _best(on, given, count, logits_bytes=BLOCKS, sets=EVERYTHING):
    policy, teacher, weights = given

    def loss(policy):
        with using(on):
            settings = LogprobSettings(1.0, logits_bytes)
            best = best_tokens(teacher, count, settings, sets)
            ours = given_logprobs(policy, best.ids, settings, sets)
            found = best_divergence(ours, best.logprobs)
        return (found * weights).sum(), (best, ours, found)

    (_, found), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(policy)
    return *found, gradient


def _bucketed(policy, teacher, count):
    """The divergence with all but the teacher's best tokens as one outcome, and its gradient."""
    ours, others = (np.exp(_logprobs(one)) for one in (policy, teacher))
    best = np.argsort(-others, axis=-1)[..., :count]
    (p, q), rest = (np.take_along_axis(x, best, -1) for x in (ours, others)), []
    rest = [1 - p.sum(-1), 1 - q.sum(-1)]
    ratio = np.repeat(np.log(rest[0] / rest[1])[..., None], V, axis=-1)
    np.put_along_axis(ratio, best, np.log(p / q), axis=-1)
    kl = (ours * ratio).sum(-1)
    return best, np.log(q), kl, ours * (ratio - kl[..., None])


@pytest.mark.parametrize("logits_bytes", [BLOCKS, WHOLE])
def test_the_best_tokens_and_their_tail_are_those_of_enumeration(logits_bytes):
    policy, teacher, weights = given = _drawn()
    best, ours, found, gradient = _best(layout(), given, K, logits_bytes)
    ids, logprobs, kl, by_logits = _bucketed(policy, teacher, K)
    np.testing.assert_array_equal(best.ids, ids)
    np.testing.assert_allclose(best.logprobs, logprobs, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(ours, np.take_along_axis(_logprobs(policy), ids, -1), rtol=1e-5)
    np.testing.assert_allclose(found, kl, rtol=1e-5, atol=2e-6)
    by_logits = by_logits * weights[..., None]
    by_kernel = np.einsum("btv,btd->vd", by_logits, policy.hidden)
    np.testing.assert_allclose(gradient.kernel, by_kernel, rtol=1e-4, atol=5e-6)


@pytest.mark.nightly
def test_the_divergence_of_more_tokens_is_nearer_to_that_of_all():
    given = _drawn()
    exact = _kl(*given[:2])[0]
    found = [np.asarray(_best(layout(), given, count)[2]) for count in (1, 30, V)]
    assert np.all(found[0] < found[1])
    assert np.all(found[1] < exact)
    np.testing.assert_allclose(found[2], exact, rtol=1e-4)


def test_a_set_of_fewer_tokens_than_are_compared_is_compared_whole():
    given = _drawn()
    kept, sets = _sets(given, 3)
    found = _best(layout(), given, K, sets=sets)[2]
    np.testing.assert_allclose(found, _kl(*given[:2], kept=kept)[0], rtol=1e-4, atol=2e-6)


CASES = {
    "fsdp and tensor": (layout(fsdp=2, tensor=2), 4),
    "rows that are not cut": (layout(fsdp=4), 3),
    "tensor": (layout(tensor=4), 2),
    "data and fsdp": (layout(2, 2), 8),
}


@pytest.mark.nightly
@pytest.mark.samples("fsdp and tensor")
@pytest.mark.parametrize(("on", "rows"), CASES.values(), ids=CASES)
def test_shards_of_both_models_give_the_same(on, rows):
    given = _drawn(rows)
    _assert_is_enumerated(_found(on, BLOCKS, 1.0, given), given)
    best, _, found, gradient = _best(on, given, K)
    ids, _, kl, by_logits = _bucketed(*given[:2], K)
    np.testing.assert_array_equal(best.ids, ids)
    np.testing.assert_allclose(found, kl, rtol=1e-5, atol=2e-6)
    by_logits = by_logits * given[2][..., None]
    by_hidden = np.einsum("btv,vd->btd", by_logits, given[0].kernel)
    np.testing.assert_allclose(gradient.hidden, by_hidden, rtol=1e-4, atol=5e-6)
