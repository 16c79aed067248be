"""One update of a reward model: a trainer step's update with the loss on pairs."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.learning import pairs
from rl_sync.learning.objective import Metrics, OfTokens
from rl_sync.learning.pairs import Pairs
from rl_sync.learning.update import Update
from rl_sync.types import Params


@dataclasses.dataclass(frozen=True)
class PairUpdate(Update[Pairs, int]):
    """Updates of a reward model, whose shares are `Pairs`."""

    def _totals(
        self, share: Pairs, sequence_count: int, kl_coefficient: Float[Array, ""] | None
    ) -> int:
        del share, kl_coefficient
        return sequence_count // pairs.PAIR

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
        scores = self.forward.scalars(self._held(trained), frozen, rows.tokens, rows.packing)
        loss, metrics = pairs.pair_loss(scores, known, totals)
        return loss, (metrics, {})
