"""Admission of groups to the replay buffer, once they are judged."""

from __future__ import annotations

import dataclasses

from rl_sync.actors.events import Admit, Command, GroupsJudged, LiveLease, Record
from rl_sync.actors.master_state import MasterState, Outcome, drop


def admit(state: MasterState, event: GroupsJudged) -> Outcome:
    """Drops groups that teach nothing; other prompts are tried in their places."""
    screening, admitted = state.settings.screening, []
    replaced: dict[str, list[int]] = {}
    out_of_attempts: dict[str, list[LiveLease]] = {}
    for lease_id, rewards in event.judged:
        # The trainer refuses the group of a lease that is over.
        lease, fault = state.live.get(lease_id), screening.fault(rewards)
        if lease and fault and lease.replacement + 1 < screening.max_attempts:
            replaced.setdefault(fault, []).append(lease_id)
            continue
        admitted.append(lease_id)
        if lease and fault:
            out_of_attempts.setdefault(fault, []).append(lease)
    commands: list[Command] = [Admit(tuple(admitted))]
    for fault, leases in out_of_attempts.items():
        state = dataclasses.replace(state, out_of_attempts=state.out_of_attempts + len(leases))
        commands.append(Record("out of attempts", tuple(leases), fault))
    for fault, lease_ids in replaced.items():
        state, records = drop(state, tuple(lease_ids), fault, replaced=True)
        commands += records
    return state, tuple(commands)
