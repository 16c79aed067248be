"""Turns a config into frozen, validated records; no other module does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.settings import home, rules
from rl_sync.settings.algorithm_settings import complete
from rl_sync.settings.learning_rates import with_learning_rates
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
            RunSettings, with_learning_rates(complete(home.expand(config))), "config"
        )
        rules.check(settings)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return settings
