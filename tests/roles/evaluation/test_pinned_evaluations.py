"""Evaluations beside rollouts, each with the weights of one version."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import param_shapes
from rl_sync.roles.evaluation.evaluator import EvaluationSet, require_version
from rl_sync.roles.evaluation.pinned_evaluations import PinnedEvaluations
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.sampling import Sampling
from tests.roles.explorer.test_actor import MODEL, TASK

SAMPLING = Sampling(TASK.max_completion_tokens, (TASK.tokenizer.eos_id,))
EXAMINATION = EvaluationSet(TASK, SAMPLING, problems=9, samples=2, seed=3)


def weights(version):
    """Returns weights that differ from version to version."""
    draw = np.random.default_rng(version)
    shapes = param_shapes(MODEL)
    return jax.tree.map(lambda x: jax.device_put(draw.normal(size=x.shape).astype(x.dtype)), shapes)


def engine(slots=8):
    return Engine(MODEL, Layout.single(), EngineOptions(slots=slots, chunk_tokens=1))


@pytest.fixture
def evaluations():
    clock = itertools.count()
    return PinnedEvaluations(EXAMINATION, engine, lambda: float(next(clock)))


def to_the_end(evaluations, *, delays=True):
    """Steps until an evaluation is made; returns it, and the number of steps."""
    for steps in itertools.count(1):
        if (made := evaluations.step(delays=delays)) is not None:
            return made, steps


def tokens(made):
    return [item.tokens for item in made.items]


def alone(version):
    """Returns the completions of an engine that does nothing else."""
    one = engine()
    one.load(weights(version), version)
    generated = one.generate(EXAMINATION.requests)
    return [item.tokens for item in EXAMINATION.written(generated)]


def test_an_evaluation_has_the_tokens_of_its_version_chunk_by_chunk(evaluations):
    evaluations.begin(4, weights(4))
    made, steps = to_the_end(evaluations)
    assert steps > 4, "it is generated in chunks"
    assert (made.version, tokens(made)) == (4, alone(4))
    assert [(item.prompt_id, item.sample) for item in made.items][:3] == [(0, 0), (0, 1), (1, 0)]
    assert evaluations.left == 0
    assert evaluations.step(delays=True) is None


def test_a_later_version_waits_and_is_evaluated_with_its_own_weights(evaluations):
    evaluations.begin(4, weights(4))
    evaluations.step(delays=True)
    evaluations.begin(7, weights(7))
    assert evaluations.left == 2
    first, second = to_the_end(evaluations)[0], to_the_end(evaluations)[0]
    assert (first.version, second.version) == (4, 7)
    assert (tokens(first), tokens(second)) == (alone(4), alone(7))
    assert alone(4) != alone(7), "the test could not fail"


def test_only_time_in_which_rollouts_stand_still_is_lost(evaluations):
    evaluations.begin(4, weights(4))
    evaluations.step(delays=True)
    made, steps = to_the_end(evaluations, delays=False)
    assert (made.busy_secs, made.lost_secs) == (1.0 + steps, 1.0)
    assert evaluations.lost_secs == 1.0


def test_tokens_of_another_version_are_never_handed_in(evaluations):
    evaluations.begin(4, weights(4))
    evaluations.step(delays=True)
    evaluations._begun.engine.load(weights(5), 5)  # Which nothing may do.
    with pytest.raises(AssertionError, match=r"of version 4 has tokens of versions \[4, 5\]"):
        to_the_end(evaluations)


def test_a_version_is_required_of_every_token():
    one = engine()
    one.load(weights(2), 2)
    generated = one.generate(EXAMINATION.requests)
    require_version(generated, 2)
    last = generated[-1][-1]
    mixed = dataclasses.replace(last, versions=np.where(np.arange(len(last.tokens)), 2, 1))
    with pytest.raises(AssertionError, match="of version 2 has tokens of versions"):
        require_version([*generated[:-1], [mixed]], 2)


def test_broken_weights_are_named_by_their_version(evaluations):
    evaluations.begin(
        4, jax.tree.map(lambda x: jax.device_put(np.full_like(x, np.nan)), weights(4))
    )
    with pytest.raises(RunEndedError, match="weights of version 4: The model's logits are NaN"):
        to_the_end(evaluations)
    assert evaluations.left == 0


def test_compiling_leaves_nothing_to_evaluate(evaluations):
    evaluations.compile(weights(0))
    assert evaluations.left == 0


def test_what_is_given_up_is_not_handed_in(evaluations):
    evaluations.begin(4, weights(4))
    evaluations.begin(5, weights(5))
    evaluations.close()
    assert evaluations.left == 0
    assert evaluations.step(delays=True) is None
