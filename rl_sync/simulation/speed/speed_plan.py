"""The part of a run's settings that its speed depends on."""

from __future__ import annotations

import dataclasses
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
_ROLLOUTS_AHEAD = 4  # As `GroupDelivery` lets an explorer be ahead of the judges.

USELESS, USEFUL = (0.0, 0.0), (0.0, 1.0)
"""Rewards of simulated groups that the master has generated anew, and of those that it admits."""


@dataclasses.dataclass(frozen=True)
class SpeedPlan:
    """Settings of a simulated run.

    Attributes:
      master: settings of the master actor, whose leases never expire here.
      transfer: kind of weight transfer.
      groups_trained: number of groups of a batch that its step trains on.
      is_joint: whether trainer and explorers take part in a transfer together.
      prefetches: whether explorers fetch newer versions while they generate.
      slots: number of sequences that an explorer decodes at once.
      chunk_tokens: decode steps between two looks of an explorer at its slots.
      budget_tokens: tokens after which a rollout ends; 0 for no budget.
      streams: whether an explorer takes leases while others are in flight.
      in_parts: whether groups are delivered one by one.
      swaps: whether a streaming explorer looks for newer weights while it has no room.
      beside: whether an explorer generates while its groups are judged and inserted.
      deliveries_ahead: deliveries of an explorer that may be under judgement at once.
      evaluate_every_steps: trainer steps between two evaluations by the trainer; 0 for none.
      snapshot_every_steps: trainer steps between two snapshots; 0 for none.
    """

    master: MasterSettings
    transfer: str
    groups_trained: int
    is_joint: bool
    prefetches: bool = False
    slots: int = 1 << 30
    chunk_tokens: int = 16
    budget_tokens: int = 0
    streams: bool = False
    in_parts: bool = False
    swaps: bool = False
    beside: bool = True
    deliveries_ahead: int = _ROLLOUTS_AHEAD
    evaluate_every_steps: int = 0
    snapshot_every_steps: int = 0

    @property
    def schedule(self) -> SyncSchedule:
        """The sync schedule."""
        return self.master.schedule

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
    attempts = settings.algorithm.screening.max_attempts
    master = dataclasses.replace(
        wiring.master_settings(settings, _POOL),
        lease_secs=math.inf,
        curriculum=CurriculumSettings(),
        screening=Screening(True, -UNBOUNDED, UNBOUNDED, attempts)
        if attempts > 1
        else NO_SCREENING,
        steps=settings.trainer.steps if steps is None else steps,
    )
    rollout = settings.rollout
    in_parts = rollout.streaming or (in_parts and wiring.delivers_beside(settings))
    return SpeedPlan(
        master=master,
        transfer=settings.transfer,
        groups_trained=settings.trainer.groups_per_step,
        is_joint=TRANSFERS[settings.transfer].is_joint,
        prefetches=settings.deltas and settings.schedule.pull == "latest",
        slots=settings.slots,
        chunk_tokens=rollout.chunk_tokens,
        budget_tokens=rollout.budget_tokens,
        streams=rollout.streaming,
        in_parts=in_parts,
        swaps=rollout.swap == "in_flight",
        beside=wiring.delivers_beside(settings),
        deliveries_ahead=settings.groups_ahead if in_parts else _ROLLOUTS_AHEAD,
        evaluate_every_steps=(
            0 if settings.evaluates_on_explorers else settings.evaluation.every_steps
        ),
        snapshot_every_steps=settings.checkpoint.every_steps,
    )
