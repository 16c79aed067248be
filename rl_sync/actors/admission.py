"""Admission of groups to the replay buffer, once they are judged."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from rl_sync.actors.events import (
    Admit,
    Command,
    FailedEpisode,
    GroupsJudged,
    LiveLease,
    Record,
)
from rl_sync.actors.master_state import MasterState, Outcome, drop

EPISODE_FAILED = "episode failed"


def admit(state: MasterState, event: GroupsJudged) -> Outcome:
    """Drops groups that lack episodes, or that teach nothing.

    The prompt of a group that lacks episodes, as their environments failed, is leased again, as
    often as may be. For a group that teaches nothing another prompt is tried.
    """
    admitted: list[int] = []
    failed: dict[str, list[int]] = {}
    replaced: dict[str, list[int]] = {}
    out_of_attempts: dict[str, list[LiveLease]] = {}
    screening, lost = state.settings.screening, _lost(event.failed)
    for lease_id, rewards in event.judged:
        lease = state.live.get(lease_id)
        # The trainer refuses the group of a lease that is over.
        if lease is None:
            admitted.append(lease_id)
        elif lease_id in lost and _may_be_leased_again(state, lease):
            failed.setdefault(lost[lease_id], []).append(lease_id)
        elif (fault := screening.fault(rewards)) is None or not screening.replaces:
            admitted.append(lease_id)
        elif lease.replacement + 1 < screening.max_attempts:
            replaced.setdefault(fault, []).append(lease_id)
        else:
            admitted.append(lease_id)
            out_of_attempts.setdefault(fault, []).append(lease)
    state, told = _tell(state, event.failed)
    commands: list[Command] = [Admit(tuple(admitted)), *told]
    for fault, leases in out_of_attempts.items():
        state = dataclasses.replace(state, out_of_attempts=state.out_of_attempts + len(leases))
        commands.append(Record("out of attempts", tuple(leases), fault))
    for reason, lease_ids in failed.items():
        state, records = drop(state, tuple(lease_ids), reason, failed=True)
        commands += records
    for fault, lease_ids in replaced.items():
        state, records = drop(state, tuple(lease_ids), fault, replaced=True)
        commands += records
    return state, tuple(commands)


def _lost(failed: Sequence[FailedEpisode]) -> dict[int, str]:
    """Returns the leases whose groups lack episodes, each with the reason of the first one."""
    return {one.lease_id: one.reason for one in reversed(failed) if one.is_lost}


def _may_be_leased_again(state: MasterState, lease: LiveLease) -> bool:
    """Says whether another lease of the prompt may follow one whose episodes failed."""
    settings = state.settings
    return settings.schedule.pull == "latest" and lease.failures + 1 < settings.max_leases


def _tell(state: MasterState, failed: Sequence[FailedEpisode]) -> Outcome:
    """Counts beginnings of episodes that failed, and has each of them recorded."""
    counts = collections.Counter(state.failed)
    counts.update(one.reason for one in failed)
    records = []
    for one in failed:
        lease = state.live.get(one.lease_id)
        records.append(Record(EPISODE_FAILED, (lease,) if lease else (), one.reason, one))
    return dataclasses.replace(state, failed=dict(counts)), tuple(records)
