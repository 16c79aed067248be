"""Completes `config.algorithm` by a named algorithm; the user's settings override its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_sync.algorithms.algorithm import ALGORITHMS, FRESH, STALE, Algorithm
from rl_sync.schedule import resolve
from rl_sync.settings.records import build
from rl_sync.settings.sync_settings import SyncSettings

_SCREENS = ("filter_zero_variance", "group_mean_low", "group_mean_high")
_ATTEMPTS = 10
"""Default of `algorithm.max_attempts` if the user asks for screening: the value of `dapo`."""


def complete(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config, with the algorithm's values for settings that are None.

    Without a name, the algorithm is chosen by the staleness that the schedule allows, and by
    whether explorers are quantized. If the user
    sets which groups are useless, but not how many prompts to try, `max_attempts` gets a default
    that replaces useless groups.

    Raises:
      ValueError: no algorithm has the name, or the sync settings contradict each other.
    """
    given = config.get("algorithm") if isinstance(config, Mapping) else None
    if not isinstance(given, Mapping) or "sync" not in config:
        return config  # It is rejected when the sections are made.
    sync: SyncSettings = build(SyncSettings, config["sync"], "config.sync")
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
