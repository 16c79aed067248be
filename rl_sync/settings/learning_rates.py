"""Fills in default learning rates, which depend on how the policy starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Rates(NamedTuple):
    """Learning rates for a policy from scratch, for a whole checkpoint, and for its adapters."""

    scratch: float
    checkpoint: float
    adapters: float


_DEFAULTS = {"optimizer": _Rates(3e-4, 1e-6, 1e-5), "sft": _Rates(2e-3, 1e-5, 1e-4)}
"""Default learning rates by section."""


def with_learning_rates(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config with default learning rates in place of None."""
    model = config.get("model") if isinstance(config, Mapping) else None
    if not isinstance(model, Mapping):
        return config  # It is rejected when the sections are made.
    lora = model.get("lora")
    has_adapters = isinstance(lora, Mapping) and bool(lora.get("rank"))
    filled = {}
    for name, rates in _DEFAULTS.items():
        section = config.get(name)
        if isinstance(section, Mapping) and section.get("learning_rate", 0) is None:
            of_checkpoint = rates.adapters if has_adapters else rates.checkpoint
            rate = of_checkpoint if model.get("path") else rates.scratch
            filled[name] = {**section, "learning_rate": rate}
    return {**config, **filled}
