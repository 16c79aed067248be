"""One update of a trainer step: gradients of policy and critic, and the optimizers' steps.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, Protocol, TypeVar

import jax
import optax
from jaxtyping import Array, Bool, Float

from rl_sync.learning import demonstration_loss, objective
from rl_sync.learning.critic import Critic, CriticState, value_loss
from rl_sync.learning.forward import Compare, Forward, RowInputs
from rl_sync.learning.loss_scale import NORMS, LossScale, next_scale
from rl_sync.learning.microbatches import gradient
from rl_sync.learning.objective import (
    BatchExperience,
    LossConfig,
    Metrics,
    OfTokens,
    Totals,
    of_tokens,
    policy_loss,
)
from rl_sync.learning.opt_state import ShardedOptimizer, all_finite
from rl_sync.learning.teachers import of_own_teacher
from rl_sync.models.placement import constrain_like
from rl_sync.types import Demonstrations, Params, Rows

_LOSSES = ("loss", "value_loss", "demonstration_loss")
"""Losses that must be finite, as the norms of gradients; otherwise the update is skipped."""


class Learned(NamedTuple):
    """The parts of a state that an update changes; see `TrainState`."""

    trained: Params
    opt_state: optax.OptState
    critic: CriticState | None
    loss_scale: LossScale | None = None


class StepValues(NamedTuple):
    """Values that all updates of a trainer step share.

    Attributes:
      frozen: the parameters that are not trained.
      sequence_count: number of trajectories of each update.
      kl_coefficient: see `TrainState`.
      learns: whether the policy learns yet.
    """

    frozen: Params
    sequence_count: int
    kl_coefficient: Float[Array, ""] | None
    learns: Bool[Array, ""]


class HasRows(Protocol):
    """Container of rows of tokens."""

    @property
    def rows(self) -> Rows:
        """The tokens."""


Share = TypeVar("Share", bound=HasRows)
"""A share of a batch with the inputs of its loss; all its arrays have a leading axis of rows."""
Common = TypeVar("Common")
"""Figures of a whole update, which all its rows share."""


@dataclasses.dataclass(frozen=True)
class Update(ABC, Generic[Share, Common]):
    """Updates of a model, and of the critic if there is one; subclasses define the loss.

    Attributes:
      loss: the settings of the loss.
      forward: forward passes of the models.
      policy: the policy's optimizer.
      critic: the critic; None if the algorithm needs no values.
    """

    loss: LossConfig
    forward: Forward
    policy: ShardedOptimizer
    critic: Critic | None

    def take(
        self,
        learned: Learned,
        share: Share,
        demonstrations: Demonstrations | None,
        step: StepValues,
    ) -> tuple[Learned, Metrics, OfTokens]:
        """Applies one update, or skips it.

        It is skipped if it is not finite, and then the metric `skipped` is true; or if there is no
        token to learn from, and then the metric `unjudged` is true. If only the scale of the loss
        was too high for the gradient, `overflows` is true instead of `skipped`.

        Args:
          share: rows of the update, with the inputs of the loss.
          demonstrations: demonstrations to mix in; None for none.
          step: values of the update's step.

        Returns:
          The learned state, the metrics, and per-token figures from before the update.
        """
        gradients, metrics, tokens = self._gradients(learned, share, demonstrations, step)
        metrics["gradient_norm"] = optax.tree.norm(gradients[0])
        if learned.critic is not None:
            metrics["critic_gradient_norm"] = optax.tree.norm(gradients[1])
        has_loss, has_gradient = (
            all_finite([metrics[name] for name in names if name in metrics])
            for names in (_LOSSES, NORMS)
        )
        finite = has_loss & has_gradient
        judged = self._has_tokens(share) | (demonstrations is not None)
        metrics |= {"skipped": judged & ~finite, "unjudged": ~judged}
        after = self._learn(learned, gradients, step.learns, finite & judged)
        scaling = learned.loss_scale
        if scaling is not None:
            scaling, overflows = next_scale(scaling, judged & has_loss, has_gradient)
            metrics |= {"skipped": metrics["skipped"] & ~overflows, "overflows": overflows}
        return after._replace(loss_scale=scaling), metrics, tokens

    def _gradients(
        self,
        learned: Learned,
        share: Share,
        demonstrations: Demonstrations | None,
        step: StepValues,
    ) -> tuple[tuple[Params, Params], Metrics, OfTokens]:
        """Computes the gradients of policy and critic, the losses, and per-token figures."""
        frozen, microbatch_rows = step.frozen, self.loss.microbatch_rows
        totals = self._totals(share, step.sequence_count, step.kl_coefficient)

        def loss(
            params: tuple[Params, Params | None], some: Share
        ) -> tuple[Float[Array, ""], tuple[Metrics, OfTokens]]:
            return self._loss(*params, frozen, some, totals)

        params = learned.trained, learned.critic.params if learned.critic else None
        scale = None if learned.loss_scale is None else learned.loss_scale.scale
        gradients, (metrics, tokens) = gradient(loss, params, share, microbatch_rows, scale)
        if demonstrations is None:
            return gradients, metrics, tokens
        plain = self.forward.plain
        mixed, more = demonstration_loss.mix_in(
            gradients[0],
            lambda trained, rows: plain.logprobs(
                self._held(trained), frozen, RowInputs(rows.tokens, images=rows.images)
            ),
            learned.trained,
            demonstrations,
            share=self.loss.algorithm.demonstration_coefficient,
            microbatch_rows=microbatch_rows,
            scale=scale,
        )
        return (mixed, gradients[1]), metrics | more, tokens

    def _learn(
        self,
        before: Learned,
        gradients: tuple[Params, Params],
        learns: Bool[Array, ""],
        holds: Bool[Array, ""],
    ) -> Learned:
        """Applies the gradients; only the critic's, if the policy does not learn yet.

        Args:
          holds: whether the update is applied; if not, nothing changes.
        """
        critic, held = before.critic, holds
        if self.critic is not None and critic is not None:
            critic = self.critic.learn(critic, gradients[1], self.policy.abstract, holds)
            held = holds & learns if self.critic.config.warmup_steps else holds
        return Learned(
            *self.policy.update(before.trained, before.opt_state, gradients[0], held), critic
        )

    @abstractmethod
    def _has_tokens(self, share: Share) -> Bool[Array, ""]:
        """Says whether there is a token to learn from."""

    @abstractmethod
    def _totals(
        self, share: Share, sequence_count: int, kl_coefficient: Float[Array, ""] | None
    ) -> Common:
        """Computes the figures that all rows of an update have in common."""

    @abstractmethod
    def _loss(
        self,
        trained: Params,
        critic: Params | None,
        frozen: Params,
        known: Share,
        totals: Common,
    ) -> tuple[Float[Array, ""], tuple[Metrics, OfTokens]]:
        """Computes the loss of some rows of an update, its metrics, and figures of each token."""

    def _held(self, trained: Params) -> Params:
        """Keeps trained parameters, and their gradient, in their sharding."""
        return constrain_like(trained, self.policy.abstract)


@dataclasses.dataclass(frozen=True)
class PolicyUpdate(Update[BatchExperience, Totals]):
    """Updates of a policy, by the loss of the algorithm.

    Attributes:
      scores: whether the update's log-probabilities are those of the weights that drew the tokens;
        see `Preparation.scores_in_update`.
      compare: compute the divergence from each teacher, if the loss has it.
    """

    scores: bool = False
    compare: tuple[Compare, ...] = ()

    def _has_tokens(self, share: BatchExperience) -> Bool[Array, ""]:
        # Tokens of unjudged completions are masked.
        return share.rows.completion_mask.any()

    def _totals(
        self, share: BatchExperience, sequence_count: int, kl_coefficient: Float[Array, ""] | None
    ) -> Totals:
        return objective.totals(self.loss, share, sequence_count, kl_coefficient)

    def _loss(
        self,
        trained: Params,
        critic: Params | None,
        frozen: Params,
        known: BatchExperience,
        totals: Totals,
    ) -> tuple[Float[Array, ""], tuple[Metrics, OfTokens]]:
        trained, rows = self._held(trained), known.rows
        if self.critic is not None and critic is not None:
            critic = self.critic.held(critic, self.policy.abstract)
        found = self.forward.outputs(trained, critic, frozen, RowInputs.of(rows), self.compare)
        if self.scores:
            # The sampler is the policy itself, whose score has the expectation 0.
            drawn = rows._replace(
                behavior_logprobs=jax.lax.stop_gradient(found.logprobs), sampler_logprobs=None
            )
            known = known._replace(rows=drawn, recorded_logprobs=rows.behavior_logprobs)
            rows = drawn
        algorithm = self.loss.algorithm
        divergence = None
        if found.divergences:
            divergence = of_own_teacher(found.divergences, rows.teachers)
        loss, metrics = policy_loss(algorithm, found, known, totals, divergence)
        tokens = of_tokens(found.logprobs, found.entropy, rows)
        if self.critic is None or found.values is None:
            return loss, (metrics, tokens)
        of_values, more = value_loss(self.critic.config, found.values, known, totals)
        return loss + of_values, (metrics | more, tokens)
