"""Default learning rates, which depend on how the policy starts."""

from __future__ import annotations

from typing import NamedTuple


class LearningRates(NamedTuple):
    """Learning rates for a policy from scratch, for a whole checkpoint, and for its adapters."""

    scratch: float
    checkpoint: float
    adapters: float

    def rate(self, checkpoint: bool, adapters: bool) -> float:
        """Returns the learning rate of a policy.

        Args:
          checkpoint: whether the policy starts from a checkpoint.
          adapters: whether only adapters are trained.
        """
        if not checkpoint:
            return self.scratch
        return self.adapters if adapters else self.checkpoint

    def __str__(self) -> str:
        checkpoint, adapters = (f"{rate:.0e}".replace("e-0", "e-") for rate in self[1:])
        return (
            f"{self.scratch:g} for a policy from scratch, {checkpoint} for a checkpoint,"
            f" {adapters} with adapters"
        )


RL = LearningRates(3e-4, 1e-6, 2e-4)
SFT = LearningRates(2e-3, 1e-5, 2e-4)
"""Default learning rates by phase.

All parameters of a checkpoint: 1e-6 in RL, the default of TRL's `GRPOConfig` and of verl's actor,
and 1e-5 in SFT. Adapters: 2e-4, that of QLoRA (arXiv:2305.14314, appendix B) for models of 7 and 13
billion parameters, half of which suits larger ones; docs/real_model.md measures it in RL. Adapters
learn next to nothing at the rates of full training. The scale alpha / rank makes the best rate of
adapters nearly independent of their rank (Schulman et al., LoRA Without Regret, 2025).
"""
