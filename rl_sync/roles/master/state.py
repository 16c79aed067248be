"""The master's state, and the ends of leases."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_sync.roles.master.events import (
    Assignment,
    Command,
    DueEvaluation,
    GrantEvaluation,
    GrantLeases,
    LiveLease,
    MasterSettings,
    Record,
)
from rl_sync.tasks.curriculum import ChosenPrompt
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import Use


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
      evaluation: evaluation that an explorer runs, or has to run.
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
    evaluation: DueEvaluation | None = None
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


def drop(
    state: MasterState,
    lease_ids: tuple[int, ...],
    reason: str,
    *,
    replaced: bool = False,
    failed: bool = False,
) -> Outcome:
    """Ends leases that were not trained; their ordinals are leased again.

    Args:
      replaced, failed: see `LiveLease.next_assignment`.
    """
    leases = [state.live[lease_id] for lease_id in lease_ids if lease_id in state.live]
    if not leases:
        return state, ()
    state, dropped = settle(state, leases, reason)
    if not dropped:
        return state, ()
    again = {*state.again, *(lease.next_assignment(replaced, failed) for lease in dropped)}
    state = dataclasses.replace(state, again=tuple(sorted(again)))
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
