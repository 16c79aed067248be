"""The master's settings and state, and the ends of leases."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_sync.algorithms.screening import NO_SCREENING, Screening
from rl_sync.messages.events import (
    EXPLORER_DIED,
    LEASE_EXPIRED,
    Assignment,
    Command,
    GrantEvaluation,
    GrantLeases,
    LiveLease,
    Record,
)
from rl_sync.messages.run_result import Balance
from rl_sync.schedule import SyncSchedule
from rl_sync.tasks.curriculum import CurriculumSettings, PromptPool
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import ChosenPrompt, Use


@dataclasses.dataclass(frozen=True)
class MasterSettings:
    """Settings of the run that the master's decisions depend on.

    Attributes:
      schedule: sync schedule.
      steps: number of trainer steps of the whole run.
      groups_per_step: number of groups that one trainer step consumes, B, including groups that it
        does not train on.
      explorers: number of explorers; under exact pulls they run in lockstep.
      groups_per_lease: maximum number of groups that an explorer has in flight, unless it reports
        its own room.
      lease_secs: time that a lease lives without a heartbeat from its explorer.
      carries_over: whether explorers leave groups unfinished and continue them in their next
        rollouts; under latest pulls.
      screening: rules for replacing groups before they reach the replay buffer.
      max_leases: maximum number of leases of a prompt whose environments fail; under latest pulls.
        Under exact pulls a batch has the groups of its step, so such a prompt is not leased again.
      times_sampled: number of steps that may train on a group; more than one under latest pulls.
      evaluate_every_steps: trainer steps between two evaluations by explorers; 0 for none.
      evaluations_waiting: number of evaluations that may wait in an explorer for an earlier one.
      curriculum, pool: choice of prompts, and the prompts to choose from.
      seed: seed of the run.
    """

    schedule: SyncSchedule
    steps: int
    groups_per_step: int
    explorers: int
    groups_per_lease: int
    lease_secs: float
    carries_over: bool = False
    screening: Screening = NO_SCREENING
    max_leases: int = 1
    times_sampled: int = 1
    evaluate_every_steps: int = 0
    evaluations_waiting: int = 0
    curriculum: CurriculumSettings = dataclasses.field(default_factory=CurriculumSettings)
    pool: PromptPool = dataclasses.field(default_factory=PromptPool)
    seed: int = 0

    @property
    def follows_history(self) -> bool:
        """True if the choice of prompts depends on the history of prompts."""
        return self.curriculum.follows_history or self.pool.by_progress

    def step_of(self, ordinal: int) -> int:
        """Returns the explorer step of an ordinal under exact pulls."""
        return ordinal // self.groups_per_step + 1

    def share(self, explorer: int, step: int) -> range:
        """Returns one explorer's ordinals of an explorer step under exact pulls."""
        first = (step - 1) * self.groups_per_step
        return range(first + explorer - 1, first + self.groups_per_step, self.explorers)


class DueEvaluation(NamedTuple):
    """An evaluation that an explorer has to make.

    Attributes:
      version: version of the evaluated weights.
      explorer: explorer that makes it; None if there is none yet.
    """

    version: int
    explorer: int | None = None


class LastGrant(NamedTuple):
    """An explorer's last grant, in case its answer was lost and the request comes again.

    Attributes:
      request: see `LeaseRequested`.
      leases, evaluation: the grant, which is one of them.
    """

    request: int
    leases: GrantLeases | None = None
    evaluation: GrantEvaluation | None = None


@dataclasses.dataclass(frozen=True)
class MasterState:
    """The master's whole state.

    Attributes:
      begun: whether the trainer has been ready.
      newest: newest published version, None before the first.
      trained_steps: number of finished trainer steps.
      live: leases that have not ended, by id.
      again: work to lease again before new ordinals, in order.
      leased, trained, dropped: numbers of leases granted, trained, and dropped for each reason.
      out_of_attempts: number of groups that give no gradient, but were admitted because no further
        prompt is tried in their place.
      failed: number of failed attempts at episodes, for each reason.
      evaluations: evaluations that explorers make, or have to make, in the order of versions.
      history: history of prompts that choices may depend on.
      pending: uses that the history does not include yet, by their place: under exact pulls, uses
        in steps that the next choice must not depend on.
      plans: under exact pulls, the prompts chosen for a step, where choices depend on the history:
        one for each ordinal, then one for each replacement, and so on.
      stopping: reason why the run is being stopped; None while it goes on.
      grants: last grant of each explorer.
      batches: checksum of the batch of each step after the last snapshot, by which a step that is
        reported again is known.
      turned_down: leases that admission has dropped since the last snapshot, by which groups that
        are reported again are known.
    """

    settings: MasterSettings
    begun: bool = False
    newest: int | None = None
    trained_steps: int = 0
    next_ordinal: int = 0
    next_lease: int = 0
    again: tuple[Assignment, ...] = ()
    live: Mapping[int, LiveLease] = dataclasses.field(default_factory=dict)
    leased: int = 0
    trained: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    out_of_attempts: int = 0
    failed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    evaluations: tuple[DueEvaluation, ...] = ()
    history: PromptHistory = dataclasses.field(default_factory=PromptHistory)
    pending: Mapping[tuple[int, int], Use] = dataclasses.field(default_factory=dict)
    plans: Mapping[int, tuple[ChosenPrompt, ...]] = dataclasses.field(default_factory=dict)
    stopping: str | None = None
    grants: Mapping[int, LastGrant] = dataclasses.field(default_factory=dict)
    batches: Mapping[int, int] = dataclasses.field(default_factory=dict)
    turned_down: tuple[int, ...] = ()

    @property
    def buffered(self) -> int:
        """Number of groups in the replay buffer."""
        return sum(lease.buffered for lease in self.live.values())

    @property
    def kept(self) -> frozenset[int]:
        """Ordinals of unfinished groups whose tokens the master keeps."""
        live = (lease.ordinal for lease in self.live.values() if lease.is_kept)
        return frozenset([*live, *(one.ordinal for one in self.again if one.begun is not None)])

    # Explorers that wait ask again and again while the state stays the same, so these are kept.

    @functools.cached_property
    def ordinals(self) -> frozenset[int]:
        """Ordinals of live leases."""
        return frozenset(map(operator.attrgetter("ordinal"), self.live.values()))

    @functools.cached_property
    def waiting_versions(self) -> Mapping[int, int]:
        """Number of live leases of each version whose groups no batch has."""
        return collections.Counter(one.version for one in self.live.values() if not one.taken)

    @functools.cached_property
    def taken_steps(self) -> int:
        """The last step whose batch is taken."""
        return max(self.trained_steps, max((one.taken for one in self.live.values()), default=0))

    @property
    def finished(self) -> bool:
        """True once there is nothing left to generate."""
        return self.stopping is not None or self.trained_steps >= self.settings.steps


Outcome = tuple[MasterState, tuple[Command, ...]]


def balance(state: MasterState) -> Balance:
    """Returns the balance of a run's leases so far."""
    return Balance(
        leased=state.leased,
        trained=state.trained,
        buffered=state.buffered,
        generating=len(state.live) - state.buffered,
        dropped=dict(state.dropped),
        out_of_attempts=state.out_of_attempts,
        failed=dict(state.failed),
    )


def drop(
    state: MasterState,
    lease_ids: tuple[int, ...],
    reason: str,
    *,
    replaced: bool = False,
    failed: bool = False,
) -> Outcome:
    """Ends leases that were not trained; their ordinals are leased again.

    Completions in flight go on if only their explorer is lost, and the master keeps them.

    A batch that loses a group is not taken any more: the trainer asks for it anew.

    Args:
      replaced, failed: see `LiveLease.next_assignment`.
    """
    leases = [state.live[lease_id] for lease_id in lease_ids if lease_id in state.live]
    if not leases:
        return state, ()
    state, dropped = settle(state, leases, reason)
    if not dropped:
        return state, ()
    goes_on = reason in (EXPLORER_DIED, LEASE_EXPIRED)
    again = {*state.again, *(one.next_assignment(replaced, failed, goes_on) for one in dropped)}
    state = dataclasses.replace(state, again=tuple(sorted(again)))
    if broken := {lease.taken for lease in dropped} - {0}:
        left = {i: one._replace(taken=0) for i, one in state.live.items() if one.taken in broken}
        state = dataclasses.replace(state, live={**state.live, **left})
    return state, (Record("dropped", dropped, reason),)


def settle(
    state: MasterState, leases: Sequence[LiveLease], reason: str
) -> tuple[MasterState, tuple[LiveLease, ...]]:
    """Ends leases: as trained if a step has trained on the group, otherwise as dropped.

    Returns:
      The state, and the dropped leases.
    """
    gone = {lease.lease_id for lease in leases}
    dropped = tuple(lease for lease in leases if not lease.trained)
    counts = {reason: state.dropped.get(reason, 0) + len(dropped)} if dropped else {}
    state = dataclasses.replace(
        state,
        live={i: lease for i, lease in state.live.items() if i not in gone},
        trained=state.trained + len(leases) - len(dropped),
        dropped={**state.dropped, **counts},
    )
    return remember(state, leases), dropped


def remember(state: MasterState, leases: Sequence[LiveLease]) -> MasterState:
    """Adds the groups of ending leases to the history, if they were scored.

    Under exact pulls the groups wait until a choice may depend on their step. A group that was
    generated again because its explorer died counts once.
    """
    settings, pending = state.settings, dict(state.pending)
    is_exact = settings.schedule.pull == "exact"
    for lease in leases:
        if lease.success is not None:
            step = settings.step_of(lease.ordinal) if is_exact else state.trained_steps
            at = (lease.ordinal, lease.replacement)
            pending[at] = Use(step, *at, lease.choice.prompt, lease.success)
    state = dataclasses.replace(state, pending=pending)
    return state if is_exact else counted(state, state.trained_steps)


def counted(state: MasterState, step: int) -> MasterState:
    """Adds pending uses of steps up to `step` to the history."""
    known = sorted(use for use in state.pending.values() if use.step <= step)
    rest = {at: use for at, use in state.pending.items() if use.step > step}
    weight = state.settings.curriculum.newest_weight
    return dataclasses.replace(state, history=state.history.after(known, weight), pending=rest)
