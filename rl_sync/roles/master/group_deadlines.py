"""Deadlines of groups that may finish late: how many may begin, and which groups a batch has.

Explorers that stream, or that carry groups over, finish groups in any order, and a long group may
take several trainer steps. A group whose lease names version v is trained by step v + S + 1, where
S is `max_staleness`; that step is its *deadline*. A step trains on B groups, so all groups can meet
their deadlines if, sorted by deadline, the i-th of them has d_i with i ≤ (d_i − t) · B, where t is
the last step whose batch is taken. Two rules keep this true:

- Groups begin only as long as it stays true.
- A step takes the oldest versions at hand, and only if it stays true for the groups that are left;
  otherwise the trainer waits for the groups that are due.

So one long group takes one place until it is due, and not the room of all that begin after it.
Nobody waits for ever: groups at hand are never waited for, and a group under way finishes, or its
lease ends.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rl_sync.messages.events import BatchRequested, GrantBatch, LiveLease
from rl_sync.roles.master.state import MasterSettings, MasterState, Outcome


def deadline_of(settings: MasterSettings, version: int) -> int:
    """Returns the last step that may train on a group of a version."""
    return min(settings.steps, version + settings.schedule.max_staleness + 1)


def room_by_deadline(state: MasterState, version: int) -> int:
    """Returns the number of groups that may begin with a version; below 0 if there are too many."""
    begun = deadline_of(state.settings, version)
    due = _due(state, state.waiting_versions)
    places = _places(state, due, state.taken_steps, [begun])
    return min(free for step, free in places if step >= begun)


def take_batch(state: MasterState, event: BatchRequested) -> Outcome:
    """Chooses a step's batch from the groups at hand, or lets the trainer wait.

    A trainer that asks again for a step, because it was started anew, did not use its batch.

    Raises:
      ValueError: the step is over.
    """
    if event.step <= state.trained_steps:
        raise ValueError(
            f"the batch of trainer step {event.step} requested after step {state.trained_steps}."
        )
    unused = {
        lease_id: lease._replace(taken=0)
        for lease_id, lease in state.live.items()
        if lease.taken >= event.step
    }
    if unused:
        state = dataclasses.replace(state, live={**state.live, **unused})
    waiting = {lease.lease_id: lease for lease in _waiting(state)}
    at_hand = [waiting[one] for one in dict.fromkeys(event.at_hand) if one in waiting]
    over = tuple(one for one in event.at_hand if one not in waiting)
    batch = _oldest(state, at_hand)
    if not batch or not _leaves_enough_places(state, event.step, at_hand, batch):
        return state, (GrantBatch((), over),)
    taken = {lease.lease_id: lease._replace(taken=event.step) for lease in batch}
    state = dataclasses.replace(state, live={**state.live, **taken})
    return state, (GrantBatch(tuple(taken), over),)


def _oldest(state: MasterState, at_hand: Sequence[LiveLease]) -> list[LiveLease]:
    """Returns the groups of a batch, the oldest versions first; none if there are too few."""
    count = state.settings.groups_per_step
    return sorted(at_hand, key=lambda one: one.version)[:count] if len(at_hand) >= count else []


def _leaves_enough_places(
    state: MasterState, step: int, at_hand: Sequence[LiveLease], batch: Sequence[LiveLease]
) -> bool:
    """Says whether the groups that a step leaves can meet their deadlines.

    Groups at hand that are too many, as after a change of settings, are not waited for: they are
    refused once they are too stale.
    """
    ours = {one.lease_id for one in batch}
    left = [lease for lease in _waiting(state) if lease.lease_id not in ours]
    here = {one.lease_id for one in at_hand}
    awaited = [
        deadline_of(state.settings, lease.version) for lease in left if lease.lease_id not in here
    ]
    first = min(awaited, default=state.settings.steps + 1)
    due = _due(state, collections.Counter(lease.version for lease in left))
    return all(free >= 0 for at, free in _places(state, due, step) if at >= first)


def _due(state: MasterState, versions: Mapping[int, int]) -> collections.Counter[int]:
    """Returns the number of groups by deadline, from that by version."""
    due = collections.Counter[int]()
    for version, count in versions.items():
        due[deadline_of(state.settings, version)] += count
    return due


def _places(
    state: MasterState,
    due: collections.Counter[int],
    taken_steps: int,
    more: Sequence[int] = (),
) -> Iterator[tuple[int, int]]:
    """Yields each deadline, in order, and the places that groups leave free up to that step.

    Args:
      due: number of groups that wait, by deadline.
      taken_steps: last step whose batch is taken.
      more: further steps to yield.
    """
    settings, groups = state.settings, 0
    for step in sorted({*due, *more}):
        groups += due[step]
        yield step, (step - taken_steps) * settings.groups_per_step - groups


def _waiting(state: MasterState) -> list[LiveLease]:
    """Returns the leases whose groups no batch has: under way, in judging, or in the buffer."""
    return [lease for lease in state.live.values() if not lease.taken]
