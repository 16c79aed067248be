"""Checks that the parameters of a snapshot have the shapes of a model."""

from __future__ import annotations

import jax

from rl_sync.checkpoints.snapshot_folder import Shapes
from rl_sync.models import lora
from rl_sync.models.placement import abstract_params
from rl_sync.roles.assembly import wiring
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.weights.storage import flatten_named

_FIELD = "params"


def check_fit(found: Shapes, settings: RunSettings, task: Task) -> None:
    """Raises ValueError if a snapshot's parameters do not fit the settings' model.

    Args:
      found: the shapes of the snapshot's arrays; with adapters it may lack frozen parameters.
    """
    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator, so leave it free.
    stored = {name: kept for name, kept in found.items() if name.startswith(f"{_FIELD}/")}
    abstract = abstract_params(wiring.trainer_model(settings, task), settings.trainer_layout)
    wanted = {name: (x.shape, x.dtype) for name, x in flatten_named({_FIELD: abstract}).items()}
    trained = flatten_named({_FIELD: lora.split(abstract)[0]})
    for name in sorted({*stored, *trained}):
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"{name} is {_said(stored, name)} there and {_said(wanted, name)} here."
            )


def _said(shapes: Shapes, name: str) -> str:
    if name not in shapes:
        return "missing"
    shape, dtype = shapes[name]
    return f"{dtype}{list(shape)}"
