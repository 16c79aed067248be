"""Turns a config into frozen, validated records; no other module does so."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

from rl_sync.algorithms.algorithm import ALGORITHMS, FRESH, STALE, Algorithm
from rl_sync.learning.learning_settings import RL_RATES, SFT_RATES
from rl_sync.models.huggingface.reading import locate
from rl_sync.schedule import resolve
from rl_sync.setting import sections
from rl_sync.settings.records import ConfigError, ConfigValues, build
from rl_sync.settings.rules.table import check_rules
from rl_sync.settings.run_settings import RunSettings
from rl_sync.settings.sync_settings import SyncSettings

_SCREENS = ("filter_zero_variance", "filter", "group_mean_low", "group_mean_high")
_ATTEMPTS = 10
"""Default of `algorithm.max_attempts` if the user asks for screening: the value of `dapo`."""


def read_settings(config: ConfigValues) -> RunSettings:
    """Makes the settings of a nested config: validates each section by itself, then all together.

    All other code gets records, never a ConfigDict.

    Raises:
      ConfigError: the message has the rule, the value and the way out.
    """
    try:
        settings = build(
            RunSettings,
            _with_learning_rates(_with_adapters(_with_algorithm(expand(config)))),
            "config",
        )
        check_rules(settings)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return settings


def expand(config: ConfigValues) -> ConfigValues:
    """Returns the config with expanded paths, such as `~/runs`.

    A shell expands such a path only as a separate word, not after an equals sign.
    """
    if not isinstance(config, Mapping):
        return config  # It is rejected when the sections are made.
    return {name: _expanded(str(name), value) for name, value in config.items()}


def _expanded(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {field: _expanded(f"{name}.{field}", inner) for field, inner in value.items()}
    return os.path.expanduser(value) if name in _paths() and isinstance(value, str) else value


@functools.cache
def _paths() -> frozenset[str]:
    """Returns the names of all settings that are paths."""
    entries = (entry for section in sections(RunSettings) for entry in section.entries)
    return frozenset(entry.name for entry in entries if entry.setting.is_path)


def _with_algorithm(config: ConfigValues) -> ConfigValues:
    """Returns the config, with a named algorithm's values for settings that are None.

    Without a name, the algorithm is chosen by the staleness that the schedule allows, and by
    whether explorers are quantized. If the user sets which groups are useless, but not how many
    prompts to try, `max_attempts` gets a default that replaces useless groups.

    Raises:
      ValueError: no algorithm has the name, or the sync settings contradict each other.
    """
    given = config.get("algorithm") if isinstance(config, Mapping) else None
    if not isinstance(given, Mapping) or "sync" not in config:
        return config  # It is rejected when the sections are made.
    sync = build(SyncSettings, config["sync"], "config.sync")
    schedule = resolve(sync.mode, sync.interval, sync.offset, sync.max_staleness, sync.pull)
    explorer = config.get("explorer")
    quantizes = isinstance(explorer, Mapping) and explorer.get("quantization", "none") != "none"
    # A quantized explorer draws from another policy than the trainer's, as a stale one does.
    usual = STALE if schedule.staleness_bound > 0 or quantizes else FRESH
    name = usual if given.get("name") is None else given["name"]
    if not isinstance(name, str):
        return config
    own = dataclasses.asdict(ALGORITHMS.get(name) or Algorithm(name=name))
    chosen = {name: value for name, value in given.items() if value is not None}
    if any(chosen.get(name) for name in _SCREENS) and own["max_attempts"] == 1:
        own["max_attempts"] = _ATTEMPTS
    return {**config, "algorithm": {**own, **chosen}}


def _with_adapters(config: ConfigValues) -> ConfigValues:
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


def _given(value: object) -> object:
    """Returns a value, or None for the text that a flag says None with."""
    return None if value in ("", "None") else value


def _comparable(value: object) -> object:
    return {one.strip() for one in value.split(",")} if isinstance(value, str) else value


def _with_learning_rates(config: ConfigValues) -> ConfigValues:
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
