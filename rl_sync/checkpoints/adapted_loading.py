"""Loads a snapshot after changes of settings: fields that fit are kept, others start anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from rl_sync.checkpoints.snapshots import load_part
from rl_sync.learning.train_state import TrainState
from rl_sync.types import Params
from rl_sync.weights.storage import MismatchError

_KEPT = ("step", "params")
_log = logging.getLogger(__name__)


def load_adapted(
    directory: Path, step: int, abstract: TrainState, begin: Callable[[Params], TrainState]
) -> tuple[TrainState, list[str]]:
    """Loads the step, the parameters, and all other fields of a state that fit.

    Args:
      directory, step: folder of snapshots, and step of the snapshot.
      abstract: the abstract state that the new settings need.
      begin: makes the state at the start of RL from a snapshot's parameters.

    Returns:
      The state, and the names of its fields that start anew.

    Raises:
      MismatchError: the parameters do not fit.
    """
    found = {name: _field(directory, step, abstract, name) for name in _KEPT}
    fresh, anew = begin(found["params"])._replace(step=found["step"]), []
    for name in TrainState._fields:
        if name in _KEPT or getattr(abstract, name) is None:
            continue
        try:
            fresh = fresh._replace(**{name: _field(directory, step, abstract, name)})
        except MismatchError as error:
            _log.warning("%s starts anew: %s", name, error)
            anew.append(name)
    return fresh, anew


def _field(directory: Path, step: int, abstract: TrainState, name: str) -> Params:
    return load_part(directory, step, {name: getattr(abstract, name)})[1][name]
