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
from rl_sync.learning.forward import Forward, RowInputs, from_targets, to_targets
from rl_sync.models.vocabulary.teacher_blocks import (
    BestTokens,
    Scored,
    best_tokens,
    block_divergence,
    given_logprobs,
)
from rl_sync.models.vocabulary.token_sets import LogprobSettings, TokenSets
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
        settings = self.forward.settings
        if self.algorithm.distillation == EXACT:
            return block_divergence(policy, self._scored(rows), settings, sets)
        best = self.best(rows, sets, self.algorithm.distillation_top_k)
        return best_divergence(given_logprobs(policy, best.ids, settings, sets), best.logprobs)

    def best(self, rows: RowInputs, sets: TokenSets, count: int) -> BestTokens:
        """Finds its `count` best tokens at each target, or all tokens if these are fewer."""
        count = min(count, self.forward.model.vocab_size)
        return best_tokens(self._scored(rows), count, self.forward.settings, sets)

    def best_at_tokens(self, rows: RowInputs, count: int) -> BestTokens:
        """Finds its best tokens as `best` does, at each token of the rows; zeros at the first."""
        best, width = self.best(rows, self.forward.sets_before(rows), count), rows.tokens.shape[1]
        return BestTokens(*(from_targets(one, rows.packing, width) for one in best))

    def _scored(self, rows: RowInputs) -> Scored:
        return self.forward.scored(self.params, rows._replace(routes=None))


@dataclasses.dataclass(frozen=True)
class ServedTeacher:
    """A teacher on another machine, whose answers the rows hold.

    Attributes:
      settings: the distribution of log-probabilities, which the teacher's have, too.
    """

    settings: LogprobSettings

    def logprobs(self, rows: RowInputs) -> Float[Array, "B T"]:
        """Returns the log-probability of each token."""
        assert rows.served_logprobs is not None
        return rows.served_logprobs[..., 0]

    def divergence(self, policy: Scored, rows: RowInputs, sets: TokenSets) -> Float[Array, "B C"]:
        """Computes the policy's divergence at each target, over the teacher's best tokens there."""
        assert rows.served_logprobs is not None
        assert rows.served_ids is not None
        logprobs = to_targets(rows.served_logprobs, rows.packing)
        ids = to_targets(rows.served_ids, rows.packing)
        return best_divergence(given_logprobs(policy, ids, self.settings, sets), logprobs)


AnyTeacher = Teacher | ServedTeacher


def logprobs_by(teachers: Sequence[AnyTeacher], rows: Rows) -> Float[Array, "B T"]:
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
