"""A model's passes over the rows of a batch.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import constrain
from rl_sync.types import Packing, Params


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a model says of tokens, in rows of one trajectory each or of several.

    Attributes:
      model: its shape.
      temperature: divides the logits.
      logits_bytes: see `token_logprobs`; of all devices.
    """

    model: ModelConfig
    temperature: float
    logits_bytes: int

    def logprobs(
        self, params: Params, tokens: Int[Array, "B T"], packing: Packing | None = None
    ) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        """Of each token, and the entropy of what it was drawn from; see `token_logprobs`."""
        return token_logprobs(
            self.model,
            params,
            constrain(tokens, "batch"),
            self.temperature,
            positions=None if packing is None else packing.positions,
            segments=None if packing is None else packing.trajectories,
            logits_bytes=self.logits_bytes,
        )
