"""The trainer of a reward model: the trainer with a pair loss instead of a policy loss."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.learning import pairs
from rl_sync.learning.forward import RowInputs
from rl_sync.learning.learning_settings import PAIR
from rl_sync.learning.objective import Metrics, OfTokens
from rl_sync.learning.pairs import Pairs
from rl_sync.learning.train_state import TrainState
from rl_sync.learning.update import Learned, Update
from rl_sync.roles.trainer.actor import Trainer, whole_batch
from rl_sync.types import Packing, Params, TrainBatch

_SCORES = "scores"


@dataclasses.dataclass(frozen=True)
class PairUpdate(Update[Pairs, int]):
    """Updates of a reward model, whose shares are `Pairs`."""

    def _totals(
        self, share: Pairs, sequence_count: int, kl_coefficient: Float[Array, ""] | None
    ) -> int:
        del share, kl_coefficient
        return sequence_count // PAIR

    def _has_tokens(self, share: Pairs) -> Bool[Array, ""]:
        del share  # Always true: pairs are compared by the data, so none is unjudged.
        return jnp.array(True)

    def _loss(
        self,
        trained: Params,
        critic: Params | None,
        frozen: Params,
        known: Pairs,
        totals: int,
    ) -> tuple[Float[Array, ""], tuple[Metrics, OfTokens]]:
        del critic
        rows = known.rows
        scores = self.forward.scalars(
            self._held(trained), frozen, RowInputs(rows.tokens, rows.packing, images=rows.images)
        )
        loss, metrics = pairs.pair_loss(scores, known, totals)
        return loss, (metrics, {_SCORES: scores})


@dataclasses.dataclass(frozen=True)
class RewardTrainer(Trainer):
    """Pure functions of a trainer whose model has a scalar head, which scores completions.

    The rewards of a batch are the margins of its pairs; see `rl_sync.learning.pairs`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.model.scalar_head
        assert self.loss.algorithm.scores

    def scalars(
        self, params: Params, tokens: Int[Array, "B T"], packing: Packing | None = None
    ) -> Float[Array, "B T"]:
        """Computes the score of each prefix; may be traced."""
        return self.forward.scalars(*self.forward.split(params), RowInputs(tokens, packing))

    def _learned(
        self, state: TrainState, trained: Params, frozen: Params, batch: TrainBatch
    ) -> tuple[Learned, Metrics, OfTokens, Metrics]:
        known, of_batch = pairs.prepare(batch)
        update = PairUpdate(self.loss, self.forward, policy=self._rl_optimizer, critic=None)
        learned, of_updates, of_tokens = self._taken(update, known, state, trained, frozen, batch)
        scores = whole_batch(of_tokens[_SCORES])
        return learned, of_updates, {}, of_batch | pairs.score_metrics(scores, batch.rows)

    def _summary(self, of_updates: dict[str, Array]) -> Metrics:
        return {name: values.mean(axis=0) for name, values in of_updates.items()}
