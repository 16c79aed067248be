"""Turns a config into frozen, validated records; no other module does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.learning import learning_rates
from rl_sync.settings import home, rules
from rl_sync.settings.algorithm_settings import complete
from rl_sync.settings.records import ConfigError, build
from rl_sync.settings.run_settings import RunSettings


def read_settings(config: Mapping[str, Any]) -> RunSettings:
    """Makes the settings of a nested config: validates each section by itself, then all together.

    All other code gets records, never a ConfigDict.

    Raises:
      ConfigError: the message has the rule, the value and the way out.
    """
    try:
        settings: RunSettings = build(
            RunSettings, _with_learning_rates(complete(home.expand(config))), "config"
        )
        rules.check(settings)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return settings


def _with_learning_rates(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config with default learning rates in place of None."""
    model = config.get("model") if isinstance(config, Mapping) else None
    if not isinstance(model, Mapping):
        return config  # It is rejected when the sections are made.
    lora = model.get("lora")
    has_adapters = isinstance(lora, Mapping) and bool(lora.get("rank"))
    filled = {}
    for name, rates in {"optimizer": learning_rates.RL, "sft": learning_rates.SFT}.items():
        section = config.get(name)
        if isinstance(section, Mapping) and section.get("learning_rate", 0) is None:
            rate = rates.rate(checkpoint=bool(model.get("path")), adapters=has_adapters)
            filled[name] = {**section, "learning_rate": rate}
    return {**config, **filled}
