"""Learning of each named algorithm: a table of logits answers 8 prompts in up to 3 tokens.

If an algorithm needs values, a table of them is the critic.

An answer's reward is the share of its tokens that are right. Generation is one step behind, so that
ratios differ from 1, and each step has two updates.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning import credit, objective
from rl_sync.learning.critic import value_loss
from rl_sync.learning.forward import Outputs
from rl_sync.learning.learning_settings import CriticConfig
from rl_sync.learning.objective import LossConfig
from rl_sync.types import Rows, TrainBatch

PROMPTS, GROUP_SIZE, LENGTH, VOCABULARY = 8, 8, 3, 4
STEPS, UPDATES = 40, 2
ROWS = PROMPTS * GROUP_SIZE
RIGHT = np.random.default_rng(0).integers(0, VOCABULARY, (PROMPTS, LENGTH))
PROMPT = np.repeat(np.arange(PROMPTS), GROUP_SIZE)
LENGTHS = np.random.default_rng(1).integers(1, LENGTH + 1, ROWS)
TEACHER = 3.0 * np.eye(VOCABULARY)[RIGHT]
MASK = np.arange(LENGTH) < LENGTHS[:, None]
OPTIMIZER = optax.adam(0.1)
CRITIC = CriticConfig("own", None, coefficient=0.5, clip=0.2, warmup_steps=0)


def _logprobs(logits, tokens):
    every = jax.nn.log_softmax(logits[PROMPT])
    entropy = -(jnp.exp(every) * every).sum(axis=-1)
    return jnp.take_along_axis(every, tokens[..., None], axis=-1)[..., 0], entropy


def _right(logits):
    """Returns the mean probability of the right token."""
    return jnp.take_along_axis(jax.nn.softmax(logits), RIGHT[..., None], axis=-1).mean()


@functools.partial(jax.jit, static_argnums=0)
def _learn(algorithm, sign):
    """Returns the probability of the right token after training, with a sign for the advantages."""

    def step(carry, key):
        (logits, values), drawn_by, state = carry
        tokens = jax.random.categorical(key, drawn_by[PROMPT])
        if algorithm.demonstrations_only:
            tokens = jnp.asarray(RIGHT[PROMPT])
        rewards = (jnp.where(MASK, tokens == RIGHT[PROMPT], 0).sum(axis=1)) / LENGTHS
        behavior, proximal = (_logprobs(table, tokens)[0] for table in (drawn_by, logits))
        ref = _logprobs(jnp.zeros_like(logits), tokens)[0] if algorithm.needs_reference else None
        teacher = _logprobs(TEACHER, tokens)[0] if algorithm.has_teacher else None
        greedy = drawn_by.argmax(axis=-1)[PROMPT] == RIGHT[PROMPT]
        baselines = jnp.where(MASK, greedy, 0).sum(axis=1) / LENGTHS
        rows = Rows(tokens, jnp.asarray(MASK), behavior, jnp.zeros_like(tokens))
        of_task = LossConfig(algorithm, GROUP_SIZE, LENGTH, tuple(range(VOCABULARY)), 0)
        estimate, weights, _ = credit.give(
            of_task,
            TrainBatch(rows, rewards, baselines),
            ref,
            values[PROMPT],
            teacher_logprobs=teacher,
        )
        estimate = estimate._replace(advantages=sign * estimate.advantages)
        known = objective.BatchExperience(
            rows, jnp.ones_like(tokens), estimate, weights, proximal, ref, values[PROMPT]
        )
        totals = objective.totals(of_task, known, ROWS)

        def update(carry, _):
            def loss_of(tables):
                logits, values = tables
                scores = _logprobs(logits, tokens)
                loss, _ = objective.policy_loss(algorithm, Outputs(*scores, None), known, totals)
                if not algorithm.needs_values:
                    return loss
                return loss + value_loss(CRITIC, values[PROMPT], known, totals)[0]

            updates, state = OPTIMIZER.update(jax.grad(loss_of)(carry[0]), carry[1])
            return (optax.apply_updates(carry[0], updates), state), None

        tables = logits, values
        (tables, state), _ = jax.lax.scan(update, (tables, state), length=UPDATES)
        return (tables, logits, state), None

    start = jnp.zeros((PROMPTS, LENGTH, VOCABULARY))
    tables = start, jnp.zeros((PROMPTS, LENGTH))
    carry = (tables, start, OPTIMIZER.init(tables))
    ((logits, _), _, _), _ = jax.lax.scan(step, carry, jax.random.split(jax.random.key(0), STEPS))
    return _right(logits)


@pytest.mark.samples("grpo", gate=("dpo", "ppo", "sft"))
@pytest.mark.parametrize("name", sorted(name for name, a in ALGORITHMS.items() if not a.scores))
def test_an_algorithm_learns_and_with_the_wrong_sign_unlearns(name):
    algorithm = ALGORITHMS[name]
    assert _learn(algorithm, 1.0) > 0.5 > 2 * _learn(algorithm, -1.0) + 0.1
