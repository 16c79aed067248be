"""The part of a run's settings that its speed depends on."""

from __future__ import annotations

import dataclasses
import functools
import math

from rl_sync.algorithms.screening import NO_SCREENING, UNBOUNDED, Screening
from rl_sync.roles.assembly import wiring
from rl_sync.roles.master.state import MasterSettings
from rl_sync.schedule import SyncSchedule
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.curriculum import CurriculumSettings, PromptPool
from rl_sync.transfer import TRANSFERS

_POOL = PromptPool(count=1 << 12)  # Which prompt a group has changes no time.
_FOREVER_SECS = 1e8  # As long as a setting may say.


@dataclasses.dataclass(frozen=True)
class SpeedPlan:
    """A run that is simulated.

    Attributes:
      settings: settings of the run, in which waits have no deadline to speak of.
      in_parts: whether groups are delivered one by one.
    """

    settings: RunSettings
    in_parts: bool = False

    @functools.cached_property
    def master(self) -> MasterSettings:
        """Settings of the master, whose leases never expire here.

        A share of the groups is generated anew if the algorithm may ask for it; prompts are all
        alike.
        """
        attempts = self.settings.algorithm.screening.max_attempts
        return dataclasses.replace(
            wiring.master_settings(self.settings, _POOL),
            lease_secs=math.inf,
            curriculum=CurriculumSettings(),
            screening=Screening(True, -UNBOUNDED, UNBOUNDED, attempts)
            if attempts > 1
            else NO_SCREENING,
        )

    @functools.cached_property
    def schedule(self) -> SyncSchedule:
        """The sync schedule."""
        return self.settings.schedule

    @functools.cached_property
    def transfer(self) -> str:
        """The kind of weight transfer."""
        return self.settings.transfer

    @property
    def explorers(self) -> int:
        """The number of explorers."""
        return self.master.explorers

    @property
    def groups_trained(self) -> int:
        """The number of groups of a batch that its step trains on."""
        return self.settings.trainer.groups_per_step

    @property
    def is_joint(self) -> bool:
        """True if trainer and explorers take part in a transfer together."""
        return TRANSFERS[self.transfer].is_joint

    @property
    def prefetches(self) -> bool:
        """True if explorers fetch newer versions while they generate."""
        return self.settings.deltas and self.schedule.pull == "latest"

    @property
    def meets(self) -> bool:
        """True if the trainer waits for the explorers at each sync."""
        return self.is_joint and self.schedule.pull == "exact"


def plan_of(
    settings: RunSettings, *, steps: int | None = None, in_parts: bool = False
) -> SpeedPlan:
    """Returns the plan of a run.

    Args:
      steps: number of trainer steps; None for the run's.
      in_parts: whether groups are delivered one by one because their reward is slow.

    Raises:
      ConfigError: the simulation does not know a setting.
    """
    if settings.replay.times_sampled > 1:
        raise ConfigError(
            f"replay.times_sampled={settings.replay.times_sampled}: the simulation knows only runs"
            " that train on each group once. Use a run with replay.times_sampled=1."
        )
    if not settings.explorers:
        raise ConfigError(
            f"algorithm.name={settings.algorithm.name} generates nothing, so there is no schedule"
            " to choose."
        )
    replace = dataclasses.replace
    simulated = replace(
        settings,
        launch=replace(settings.launch, wait_secs=_FOREVER_SECS),
        sync=replace(settings.sync, verify=False, delta="on" if settings.deltas else "off"),
        trainer=replace(settings.trainer, steps=settings.trainer.steps if steps is None else steps),
    )
    streams = settings.rollout.streaming
    return SpeedPlan(simulated, streams or (in_parts and wiring.delivers_beside(settings)))
