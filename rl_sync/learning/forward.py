"""Forward passes of a model over the rows of a batch, and the parts of its parameters.

Letters in shapes: B rows, T positions, D embed.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import HEAD, hidden_scalars
from rl_sync.models.logprobs import hidden_logprobs
from rl_sync.models.sharding import constrain
from rl_sync.models.transformer import hidden_states
from rl_sync.types import Packing, Params


class Outputs(NamedTuple):
    """Log-probability, entropy and value of each token.

    Attributes:
      logprobs, entropy: see `token_logprobs`.
      values: of the states before each token; None without a critic. The value at a sequence's
        first token means nothing.
    """

    logprobs: Float[Array, "B T"]
    entropy: Float[Array, "B T"]
    values: Float[Array, "B T"] | None


@dataclasses.dataclass(frozen=True)
class Forward:
    """Forward passes of a model over rows of one trajectory each or of several.

    Attributes:
      model: its shape. With `lora`, only adapters are trained.
      temperature: divides the logits.
      logits_bytes: see `token_logprobs`; of all devices.
    """

    model: ModelConfig
    temperature: float
    logits_bytes: int

    def split(self, params: Params) -> tuple[Params, Params]:
        """Splits parameters into trained and frozen ones."""
        return lora.split(params) if self.model.lora else (params, {})

    def join(self, trained: Params, frozen: Params) -> Params:
        """Inverts `split`; trained parameters may have a scalar head."""
        return lora.join(trained, frozen) if self.model.lora else trained

    def logprobs(
        self,
        trained: Params,
        frozen: Params,
        tokens: Int[Array, "B T"],
        packing: Packing | None = None,
    ) -> Float[Array, "B T"]:
        """Computes the log-probability of each token; see `token_logprobs`."""
        return self.outputs(trained, None, frozen, tokens, packing).logprobs

    def values(
        self,
        trained: Params,
        critic: Params,
        frozen: Params,
        tokens: Int[Array, "B T"],
        packing: Packing | None = None,
    ) -> Float[Array, "B T"]:
        """Computes the values of `Outputs`; for the arguments see `outputs`."""
        trunk = trained if _is_head(critic) else critic
        return _values(critic, self._hidden(self.join(trunk, frozen), tokens, packing))

    def scalars(
        self,
        trained: Params,
        frozen: Params,
        tokens: Int[Array, "B T"],
        packing: Packing | None = None,
    ) -> Float[Array, "B T"]:
        """Computes a reward model's score of each prefix; see `token_scalars`."""
        params = self.join(trained, frozen)
        return hidden_scalars(params, self._hidden(params, tokens, packing))

    def outputs(
        self,
        trained: Params,
        critic: Params | None,
        frozen: Params,
        tokens: Int[Array, "B T"],
        packing: Packing | None = None,
    ) -> Outputs:
        """Computes log-probability, entropy and value of each token.

        Args:
          trained: the policy's trained parameters.
          critic: a scalar head alone, on the policy's trunk and in the same pass; or a head with
            the trained parameters of a model of its own, in a second pass.
          frozen: parameters that both models share.
        """
        params = self.join(trained, frozen)
        hidden = self._hidden(params, tokens, packing)
        tokens = constrain(tokens, "batch")
        logprobs, entropy = hidden_logprobs(
            self.model, params, hidden, tokens, self.temperature, self.logits_bytes
        )
        values = None
        if critic is not None:
            its_own = not _is_head(critic)
            values = _values(
                critic,
                self._hidden(self.join(critic, frozen), tokens, packing) if its_own else hidden,
            )
        return Outputs(logprobs, entropy, values)

    def _hidden(
        self, params: Params, tokens: Int[Array, "B T"], packing: Packing | None
    ) -> Float[Array, "B T D"]:
        trunk = {name: value for name, value in params.items() if name != HEAD}
        positions = None if packing is None else packing.positions
        segments = None if packing is None else packing.trajectories
        return hidden_states(self.model, trunk, constrain(tokens, "batch"), positions, segments)


def _is_head(critic: Params) -> bool:
    return critic.keys() == {HEAD}


def _values(critic: Params, hidden: Float[Array, "B T D"]) -> Float[Array, "B T"]:
    # The head reads, of a token's hidden state, the value of the state that follows the token.
    return jnp.pad(hidden_scalars(critic, hidden)[:, :-1], ((0, 0), (1, 0)))
