"""What a trainer step minimizes: the clipped policy loss, with a KL divergence to the reference.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Bool, Float

from rl_sync.algorithms import losses, masking
from rl_sync.algorithms.advantages import ADVANTAGES
from rl_sync.algorithms.kl import KL_ESTIMATORS

Metrics = dict[str, Float[Array, ""]]


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """`config.algorithm`: what a trainer step minimizes.

    Attributes:
      advantage: a key of `ADVANTAGES`.
      clip_low, clip_high: ε of the clipped ratio, below and above 1.
      kl_coefficient: weight of the KL divergence from the reference model; 0 for no reference.
      kl_estimator: a key of `KL_ESTIMATORS`.

    Raises:
      ValueError: a value outside its range.
    """

    advantage: str
    clip_low: float
    clip_high: float
    kl_coefficient: float
    kl_estimator: str

    def __post_init__(self) -> None:
        for name, value, table in (
            ("advantage", self.advantage, ADVANTAGES),
            ("kl_estimator", self.kl_estimator, KL_ESTIMATORS),
        ):
            if value not in table:
                raise ValueError(f"algorithm.{name}={value!r} is not one of {', '.join(table)}.")
        if not 0 < self.clip_low <= 1 or self.clip_high <= 0:
            raise ValueError(
                f"algorithm.clip_low={self.clip_low} must be in (0, 1] and algorithm.clip_high="
                f"{self.clip_high} above 0."
            )
        if self.kl_coefficient < 0:
            raise ValueError(
                f"algorithm.kl_coefficient={self.kl_coefficient} must not be negative."
            )


def policy_loss(
    config: AlgorithmConfig,
    logprobs: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    ref_logprobs: Float[Array, "B T"] | None,
    advantages: Float[Array, "B T"] | Float[Array, "B 1"],
    mask: Bool[Array, "B T"],
    token_count: Float[Array, ""],
) -> tuple[Float[Array, ""], Metrics]:
    """The loss of some rows of an update, and what describes it.

    Args:
      token_count: true entries of the whole update's mask. All that is returned is a sum over it,
        so the results for parts of an update add up to that for the whole.
    """

    def mean(values: Float[Array, "B T"]) -> Float[Array, ""]:
        return masking.token_mean(values, mask, token_count)

    clipping = (advantages, config.clip_low, config.clip_high)
    policy = mean(losses.ppo_clip(logprobs, behavior_logprobs, *clipping))
    loss, metrics = policy, {}
    if ref_logprobs is not None:
        kl = KL_ESTIMATORS[config.kl_estimator](logprobs, ref_logprobs)
        metrics["kl_reference"] = mean(kl)
        loss = loss + config.kl_coefficient * metrics["kl_reference"]
    metrics |= {
        "loss": loss,
        "policy_loss": policy,
        "entropy": mean(entropy),
        "kl_behavior": mean(KL_ESTIMATORS["k3"](logprobs, behavior_logprobs)),
        "clip_fraction": mean(losses.is_clipped(logprobs, behavior_logprobs, *clipping)),
    }
    return loss, metrics
