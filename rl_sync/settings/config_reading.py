"""Turns a config into frozen, validated records; no other module does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.learning.learning_settings import RL_RATES, SFT_RATES
from rl_sync.models.huggingface.reading import locate
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
            RunSettings,
            _with_learning_rates(_with_adapters(complete(home.expand(config)))),
            "config",
        )
        rules.check(settings)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return settings


def _with_adapters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config with rank, alpha and targets of the adapters that the run begins with.

    Raises:
      ConfigError: the adapters cannot be read, or have other values than the config.
    """
    model = config.get("model") if isinstance(config, Mapping) else None
    lora = model.get("lora") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(lora, Mapping):
        return config  # It is rejected when the sections are made.
    filled: dict[str, Any] = {"alpha": 32.0} if lora.get("alpha", 0) is None else {}
    if isinstance(path := _given(lora.get("path")), str):
        from rl_sync.models.huggingface.adapters import read_adapters  # Late: it imports JAX.

        try:
            found = read_adapters(locate(path)).lora
        except ValueError as error:
            raise ConfigError(f"config.model.lora.path={path!r}: {error}") from error
        filled = {
            "rank": found.rank, "alpha": found.alpha, "targets": ",".join(found.targets),
        }  # fmt: skip
        for name, value in filled.items():
            given = lora.get(name)
            if given and _comparable(given) != _comparable(value):
                raise ConfigError(
                    f"config.model.lora.{name}={given} is not that of the adapters in"
                    f" config.model.lora.path={path!r}: set --config.model.lora.{name}={value}, or"
                    " leave it out."
                )
    return {**config, "model": {**model, "lora": {**lora, **filled}}}


def _given(value: Any) -> Any:
    """Returns a value, or None for the text that a flag says None with."""
    return None if value in ("", "None") else value


def _comparable(value: Any) -> Any:
    return {one.strip() for one in value.split(",")} if isinstance(value, str) else value


def _with_learning_rates(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config with default learning rates in place of None."""
    model = config.get("model") if isinstance(config, Mapping) else None
    if not isinstance(model, Mapping):
        return config  # It is rejected when the sections are made.
    lora = model.get("lora")
    has_adapters = isinstance(lora, Mapping) and bool(lora.get("rank"))
    filled = {}
    for name, rates in {"optimizer": RL_RATES, "sft": SFT_RATES}.items():
        section = config.get(name)
        if isinstance(section, Mapping) and section.get("learning_rate", 0) is None:
            rate = rates.rate(checkpoint=bool(_given(model.get("path"))), adapters=has_adapters)
            filled[name] = {**section, "learning_rate": rate}
    return {**config, **filled}
