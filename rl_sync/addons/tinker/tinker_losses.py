"""Losses by the names that Tinker gives them, each a sum over the targets of all data.

The documentation of Tinker defines them; log π are the log-probabilities of the targets, and
q those that the client recorded when it sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.algorithms import losses

Named = Mapping[str, Float[Array, "B T K"]]
Options = Mapping[str, Any]
"""Numbers by name, which may be traced."""
_PerTarget = Callable[[Float[Array, "B T K"], Named, Options], Float[Array, "B T K"]]


class TinkerLoss(NamedTuple):
    """A loss.

    Attributes:
      per_target: maps log-probabilities, inputs and options to the loss of each target.
      inputs: names of the inputs that each datum must have, besides the targets.
      defaults: inputs that a datum may lack, with the value of each of their elements.
      options: names and defaults of the options.
    """

    per_target: _PerTarget
    inputs: tuple[str, ...] = ()
    defaults: Mapping[str, float] = {}
    options: Mapping[str, float] = {}


def _cross_entropy(logprobs: Array, inputs: Named, options: Options) -> Array:
    """−w · log π."""
    return inputs["weights"] * losses.sft(logprobs)


def _importance_sampling(logprobs: Array, inputs: Named, options: Options) -> Array:
    """−exp(log π − log q) · A."""
    return -jnp.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]


def _ppo(logprobs: Array, inputs: Named, options: Options) -> Array:
    """The loss of `losses.ppo_clip`, whose ratios are clipped to the options."""
    return losses.ppo_clip(
        logprobs,
        inputs["logprobs"],
        inputs["advantages"],
        clip_low=1 - options["clip_low_threshold"],
        clip_high=options["clip_high_threshold"] - 1,
    )


def _cispo(logprobs: Array, inputs: Named, options: Options) -> Array:
    """The loss of `losses.cispo`, whose weights are clipped to the options."""
    return losses.cispo(
        logprobs,
        inputs["logprobs"],
        inputs["advantages"],
        clip_low=1 - options["clip_low_threshold"],
        clip_high=options["clip_high_threshold"] - 1,
    )


_SAMPLED = ("logprobs", "advantages")
_CLIPS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

LOSSES: Mapping[str, TinkerLoss] = {
    "cross_entropy": TinkerLoss(_cross_entropy, defaults={"weights": 1.0}),
    "importance_sampling": TinkerLoss(_importance_sampling, _SAMPLED),
    "ppo": TinkerLoss(_ppo, _SAMPLED, options=_CLIPS),
    "cispo": TinkerLoss(_cispo, _SAMPLED, options=_CLIPS),
}
"""All losses that are served."""
