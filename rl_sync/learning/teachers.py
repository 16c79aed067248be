"""The teachers of a policy: frozen models that score the tokens that it drew.

Letters in shapes: B rows, T positions, C targets of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.algorithms.algorithm import EXACT, Algorithm
from rl_sync.algorithms.distillation import best_divergence
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.token_sets import TokenSets
from rl_sync.models.vocabulary.teacher_blocks import (
    Scored,
    best_tokens,
    block_divergence,
    given_logprobs,
)
from rl_sync.types import Params, Rows


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher with its parameters.

    Attributes:
      algorithm: says how the policy is compared with it.
      forward: passes of its model, which has the policy's vocabulary. Its distribution is changed
        as the policy's is, by the temperature and the like.
      params: its parameters.
    """

    algorithm: Algorithm
    forward: Forward
    params: Params

    def logprobs(self, rows: RowInputs) -> Float[Array, "B T"]:
        """Computes the log-probability of each token; see `Forward.outputs`."""
        return self.forward.logprobs(self.params, {}, rows._replace(routes=None))

    def divergence(self, policy: Scored, rows: RowInputs, sets: TokenSets) -> Float[Array, "B C"]:
        """Computes the policy's divergence at each target; see `Compare`."""
        scored = self.forward.scored(self.params, rows._replace(routes=None))
        settings = self.forward.settings
        if self.algorithm.distillation == EXACT:
            return block_divergence(policy, scored, settings, sets)
        count = min(self.algorithm.distillation_top_k, self.forward.model.vocab_size)
        best = best_tokens(scored, count, settings, sets)
        return best_divergence(given_logprobs(policy, best.ids, settings, sets), best.logprobs)


def logprobs_by(teachers: Sequence[Teacher], rows: Rows) -> Float[Array, "B T"]:
    """Computes the log-probability of each token under the teacher of its trajectory."""
    return of_own_teacher([one.logprobs(RowInputs.of(rows)) for one in teachers], rows.teachers)


def of_own_teacher(
    figures: Sequence[Float[Array, "B T"]], teachers: Int[Array, "B T"] | None
) -> Float[Array, "B T"]:
    """Takes the figure of each token from its own teacher.

    Args:
      figures: for each teacher, figures of all tokens.
      teachers: index of each token's teacher; None if there is one for all.
    """
    found = figures[0]
    for index in range(1, len(figures)):
        found = jnp.where(teachers == index, figures[index], found)
    return found
