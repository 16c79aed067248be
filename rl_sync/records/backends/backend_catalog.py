"""Table of the backends that metrics can go to besides `metrics.jsonl`; each is one line.

A backend of the user's own is a reference to the function that starts it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.records.backends.backend import Start
from rl_sync.references import is_reference, resolve


class BackendKind(NamedTuple):
    """A kind of backend.

    Attributes:
      start: `module:function` that starts it; imported only when needed.
      package: package that it needs.
      extra: our extra that installs the package; empty if it is always installed.
    """

    start: str
    package: str
    extra: str = ""


_ADDONS = "rl_sync.addons.metric_backends"
TENSORBOARD = "tensorboard"

BACKENDS: dict[str, BackendKind] = {
    TENSORBOARD: BackendKind(f"{_ADDONS}.tensorboard:start", "tensorboardX"),
    "wandb": BackendKind(f"{_ADDONS}.tracking:start_wandb", "wandb", "wandb"),
    "trackio": BackendKind(f"{_ADDONS}.tracking:start_trackio", "trackio", "trackio"),
    "mlflow": BackendKind(f"{_ADDONS}.mlflow:start", "mlflow", "mlflow"),
}


def starter(name: str) -> Start:
    """Imports the function that starts a backend.

    Raises:
      ValueError: one of the user's own cannot be imported; the message says why.
    """
    start: Start = resolve(name if is_reference(name) else BACKENDS[name].start)
    return start


def check_installed(names: Sequence[str]) -> None:
    """Rejects backends whose package is not installed, and those that cannot be imported.

    Raises:
      ValueError: the message says how to install the package, or what is wrong.
    """
    for name in names:
        if is_reference(name):
            resolve(name)
            continue
        kind = BACKENDS[name]
        if importlib.util.find_spec(kind.package) is None:
            raise ValueError(
                f"observe.backends has {name}, whose package {kind.package} is not installed."
                f' Install it: pip install "rl_sync[{kind.extra}]", or leave {name} out.'
            )
