"""`config.algorithm`: a named composition, with what the user set in place of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.named import named
from rl_sync.algorithms.pieces import LOSSES
from rl_sync.learning.batching import MIXED
from rl_sync.schedule import resolve
from rl_sync.settings.records import build, require
from rl_sync.settings.sections import (
    ExplorerSettings,
    SyncSettings,
    TrainerSettings,
)

_SCREENS = ("filter_zero_variance", "group_mean_low", "group_mean_high")
_ATTEMPTS = 10
"""`algorithm.max_attempts` where the user asks for screening and says no number: that of `dapo`."""


def complete(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with its algorithm's settings filled in where they are None.

    Without a name it is the algorithm for data as stale as the schedule lets them get. Where the
    user says which groups teach nothing, and not how many prompts to try, they are replaced.

    Raises:
      ValueError: no algorithm has the name, or the sync settings contradict each other.
    """
    given = config.get("algorithm") if isinstance(config, Mapping) else None
    if not isinstance(given, Mapping) or "sync" not in config:
        return config  # Refused where the sections are built.
    sync: SyncSettings = build(SyncSettings, config["sync"], "config.sync")
    schedule = resolve(sync.mode, sync.interval, sync.offset, sync.max_staleness, sync.pull)
    own = dataclasses.asdict(named(given.get("name"), schedule.staleness_bound))
    chosen = {name: value for name, value in given.items() if value is not None}
    if any(chosen.get(name) for name in _SCREENS) and own["max_attempts"] == 1:
        own["max_attempts"] = _ATTEMPTS
    return {**config, "algorithm": {**own, **chosen}}


def require_bearing(algorithm: Algorithm, staleness_bound: int, mode: str) -> None:
    """Refuses an algorithm that does not bear stale data where there may be some.

    Raises:
      ConfigError: says why, and what to do.
    """
    danger = algorithm.danger()
    require(
        danger is None or staleness_bound == 0 or algorithm.allow_unsafe,
        f"algorithm.name={algorithm.name} does not fit data that are up to {staleness_bound}"
        f" trainer steps old, which sync.mode={mode} allows: {danger}, leave out algorithm.name for"
        " one that bears them, or insist with algorithm.allow_unsafe=True.",
    )


def require_shares(algorithm: Algorithm, trainer: TrainerSettings, updates: int) -> None:
    """Refuses updates and microbatches that take apart what belongs together.

    Args:
      updates: of a trainer step.

    Raises:
      ConfigError: says what to do.
    """
    rows, group_size = trainer.microbatch_rows, trainer.group_size
    together = rows % group_size == 0 and trainer.batching not in MIXED
    require(
        not LOSSES[algorithm.loss].of_pairs or not rows or together,
        f"algorithm.loss={algorithm.loss} compares the completions of a group, but"
        f" trainer.microbatch_rows={rows} with trainer.batching={trainer.batching} takes groups"
        f" apart: use a multiple of trainer.group_size={group_size} and batching that is neither"
        f" {' nor '.join(MIXED)}, or trainer.microbatch_rows=0.",
    )
    multiple = updates * max(1, rows)
    require(
        algorithm.demonstration_rows % multiple == 0,
        f"algorithm.demonstration_rows={algorithm.demonstration_rows} demonstrations cannot be"
        f" shared evenly by optimizer.updates_per_batch={updates} updates in microbatches of"
        f" trainer.microbatch_rows={rows} (0 for whole updates): use a multiple of {multiple}.",
    )


def require_no_explorers(algorithm: Algorithm, explorer: ExplorerSettings) -> None:
    """Refuses explorers in a run in which nothing is generated.

    Raises:
      ConfigError: there are to be some.
    """
    require(
        not explorer.count,
        f"explorer.count={explorer.count} explorers would have nothing to generate:"
        f" algorithm.name={algorithm.name} trains on the task's own data alone.",
    )
