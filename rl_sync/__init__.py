"""Reinforcement learning of language models in JAX, with a choice of weight synchronization.

This is the public Python interface; docs/python.md has examples. Everything else may change without
notice.

`train` and `start` run a config; `Run`, `Event`, `RunError` and `ConfigError` belong to them.
`open_run` reads the records of a run as a `Result`. `load` returns a `Policy` that generates, and
`engine` an `Engine` for requests of your own (`CompletionRequest`, `Sampling`). `losses` and
`advantages` are modules of plain functions of arrays, and `schedule` has the rules of the modes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_sync import schedule
    from rl_sync.algorithms import advantages, losses
    from rl_sync.api.loaded_policy import Generated, Policy, engine, load
    from rl_sync.api.result import Curve, Result, open_run
    from rl_sync.api.started_run import Event, Run, RunError, start, train
    from rl_sync.rollout.engine import Engine
    from rl_sync.rollout.request import CompletionRequest
    from rl_sync.rollout.sampling import Sampling
    from rl_sync.settings.records import ConfigError

__version__ = "0.1.0"

__all__ = [
    "CompletionRequest",
    "ConfigError",
    "Curve",
    "Engine",
    "Event",
    "Generated",
    "Policy",
    "Result",
    "Run",
    "RunError",
    "Sampling",
    "advantages",
    "engine",
    "load",
    "losses",
    "open_run",
    "schedule",
    "start",
    "train",
]

_HOMES = {
    "rl_sync.api.loaded_policy": ("Generated", "Policy", "engine", "load"),
    "rl_sync.api.result": ("Curve", "Result", "open_run"),
    "rl_sync.api.started_run": ("Event", "Run", "RunError", "start", "train"),
    "rl_sync.rollout.engine": ("Engine",),
    "rl_sync.rollout.request": ("CompletionRequest",),
    "rl_sync.rollout.sampling": ("Sampling",),
    "rl_sync.settings.records": ("ConfigError",),
}
_MODULES = {
    "advantages": "rl_sync.algorithms.advantages",
    "losses": "rl_sync.algorithms.losses",
    "schedule": "rl_sync.schedule",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import rl_sync` is quick."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'rl_sync' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
