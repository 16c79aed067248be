"""Helpers for tests of the master: its settings, and a function that applies events."""

from rl_sync.algorithms.screening import NO_SCREENING, Screening
from rl_sync.messages.events import (
    BatchRequested,
    FailedEpisode,
    GroupsJudged,
    LeaseRequested,
    Position,
    Started,
    VersionPublished,
)
from rl_sync.roles.master import transition
from rl_sync.roles.master.state import MasterSettings

SPREAD, SAME = (0.0, 1.0), (1.0, 1.0)


def settings_of(
    schedule,
    steps=6,
    groups=4,
    explorers=1,
    groups_per_lease=4,
    carries_over=False,
    screening=NO_SCREENING,
    max_leases=1,
):
    return MasterSettings(
        schedule,
        steps,
        groups_per_step=groups,
        explorers=explorers,
        groups_per_lease=groups_per_lease,
        lease_secs=10.0,
        carries_over=carries_over,
        screening=screening,
        max_leases=max_leases,
    )


def needing_spread(max_attempts):
    return Screening(True, -1.0, 2.0, max_attempts)


def assignments(grant):
    return [(one.ordinal, one.attempt, one.replacement) for one in grant.leases]


def judged(grant, *rewards, failed=()):
    return GroupsJudged(tuple(zip(ids(grant), rewards, strict=True)), tuple(failed))


def failed(lease_id, sample=0, attempt=0, reason="environment failure", is_lost=True):
    return FailedEpisode(lease_id, 40 + lease_id, sample, attempt, reason, "no board", is_lost)


def take(state, *events):
    """Applies events in turn; returns the last state and all commands."""
    commands = []
    for event in events:
        state, new = transition.transition(state, event)
        commands += new
    return state, commands


def started(run_settings):
    state = transition.MasterState(run_settings)
    return take(state, Started(Position(0, 0, (), 0)), VersionPublished(0))[0]


def lease(state, explorer=1, now=0.0, unfinished=0, room=None, version=None, **more):
    request = LeaseRequested(explorer, now, unfinished, room, version, **more)
    state, (answer, *_) = transition.transition(state, request)
    return state, answer


def batch_of(state, at_hand):
    """Asks for the next step's batch; returns the state, and the batch's lease ids."""
    request = BatchRequested(state.trained_steps + 1, tuple(at_hand))
    state, (*_, answer) = transition.transition(state, request)
    return state, answer.lease_ids


def ids(grant):
    return tuple(one.lease_id for one in grant.leases)


def accounted(state):
    return state.trained + len(state.live) + sum(state.dropped.values())
