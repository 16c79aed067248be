"""Settings of a run that differ from the defaults of its mode and algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_sync.configs import base
from rl_sync.setting import flat
from rl_sync.settings.config_reading import read_settings

_PLACE = ("name", "workdir")
"""Settings that do not influence a run."""

_LEADING = ("sync.mode", "algorithm.name")
"""Settings that determine the defaults of others."""


def deviations(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a resolved config that differ from the defaults, by name.

    Raises:
      ConfigError: the defaults with this mode and this algorithm are not valid.
    """
    given, default = dict(flat(config)), base.get_config()
    led = {name: given[name] for name in _LEADING if given.get(name) is not None}
    with default.unlocked():
        default.update_from_flattened_dict({**led, "workdir": ""})
    usual = dict(flat(json.loads(json.dumps(read_settings(default.to_dict()).resolved()))))
    found = {name: led[name] for name in led}
    for name in given.keys() & usual.keys() - led.keys() - {*_PLACE}:
        if json.dumps(given[name]) != json.dumps(usual[name]):
            found[name] = given[name]
    return dict(sorted(found.items()))
