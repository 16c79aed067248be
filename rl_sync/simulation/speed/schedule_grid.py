"""The schedules that are compared: each is a change of a run's settings that their rules accept."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.schedule import MODES
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.speed_plan import SpeedPlan, plan_of


class ScheduleGrid(NamedTuple):
    """Values to combine.

    Attributes:
      modes: names of modes.
      intervals: trainer steps between two publications, for modes that leave it free.
      offsets: batches that explorers run ahead, for the mode `custom`.
      bounds: maximum staleness, for modes with latest pulls.
      explorers: numbers of explorers.
      groups: groups that a trainer step trains on.
      transfers: kinds of weight transfer.
    """

    modes: Sequence[str]
    intervals: Sequence[int]
    offsets: Sequence[int]
    bounds: Sequence[int]
    explorers: Sequence[int]
    groups: Sequence[int]
    transfers: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A schedule that a run can have.

    Attributes:
      changes: settings that make the run's config have it, by name.
      settings: the settings with these changes.
      plan: the part of them that the speed depends on.
    """

    changes: Mapping[str, Any]
    settings: RunSettings
    plan: SpeedPlan

    @property
    def flags(self) -> list[str]:
        """The changes as flags of the command line; unset ones follow the mode."""
        return [
            f"--config.{name}={value}" for name, value in self.changes.items() if value is not None
        ]

    @property
    def label(self) -> str:
        """A short name of the schedule among others of its mode."""
        schedule, master = self.plan.schedule, self.plan.master
        parts = [f"I{schedule.interval}"]
        parts.append(
            f"O{schedule.offset}" if schedule.pull == "exact" else f"S{schedule.max_staleness}"
        )
        return " ".join([*parts, f"×{master.explorers}"])


def candidates(
    config: Mapping[str, Any], grid: ScheduleGrid, steps: int, in_parts: bool = False
) -> list[Candidate]:
    """Returns the schedules of a grid that the settings' rules accept, each once.

    Args:
      config: settings of the run, as a nested dict.
      steps: trainer steps of a simulated run.
      in_parts: see `plan_of`.

    Raises:
      ConfigError: no schedule is accepted; the message is that of the first one.
    """
    found: dict[Any, Candidate] = {}
    refused: ConfigError | None = None
    for changes in _changes(config, grid):
        try:
            settings = read_settings(_with(config, changes))
            plan = plan_of(settings, steps=steps, in_parts=in_parts)
        except ConfigError as error:
            refused = refused or error
            continue
        master = plan.master
        same = plan.schedule, plan.transfer, master.explorers, master.groups_per_step
        found.setdefault(same, Candidate(changes, settings, plan))
    if not found:
        raise refused or ConfigError("No schedule is left to try: give more values.")
    return [*found.values()]


def _changes(config: Mapping[str, Any], grid: ScheduleGrid) -> Iterator[dict[str, Any]]:
    """Yields the settings of each combination; named modes come before `custom`."""
    lease = _own_lease(config)
    for mode in sorted(grid.modes, key=[*MODES].index):
        named = MODES[mode]
        intervals = [named.interval] if named.fixed_interval else grid.intervals
        offsets = [named.offset] if named.fixed_offset else grid.offsets
        bounds: Sequence[int | None] = grid.bounds if named.pulls[0] == "latest" else [None]
        for interval, offset, bound, explorers, groups, transfer in itertools.product(
            intervals, offsets, bounds, grid.explorers, grid.groups, grid.transfers
        ):
            if named.most_explorers is not None and explorers > named.most_explorers:
                continue
            if explorers < named.least_explorers or (bound is not None and bound < interval - 1):
                continue
            same = explorers == config["explorer"]["count"]
            same = same and groups == config["trainer"]["groups_per_step"]
            yield {
                "sync.mode": mode,
                "sync.interval": None if named.fixed_interval else interval,
                "sync.offset": None if named.fixed_offset else offset,
                "sync.max_staleness": bound,
                "sync.pull": None,
                "sync.transfer": transfer,
                "explorer.count": explorers,
                "explorer.groups_per_lease": lease if same else None,
                "trainer.groups_per_step": groups,
            }


def _own_lease(config: Mapping[str, Any]) -> int | None:
    """Returns the groups of a lease if the run had other ones than an even share of a batch."""
    lease, explorers = config["explorer"]["groups_per_lease"], config["explorer"]["count"] or 1
    groups = config["trainer"]["groups_per_step"] * (config["algorithm"]["over_sampling"] or 1.0)
    return None if lease == math.ceil(math.ceil(groups) / explorers) else lease


def _with(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with changed settings."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    for name, value in changes.items():
        section, _, key = name.partition(".")
        changed[section][key] = value
    return changed
