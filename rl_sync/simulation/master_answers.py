"""Events of the calls to a simulated master, and the answers to them.

The simulations have the master's real transition, and the real meeting point of collective
transfers; only its service is theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rl_sync.messages.call import Call
from rl_sync.messages.events import (
    BatchRequested,
    Command,
    Event,
    GrantLeases,
    GroupsBuffered,
    LeaseGrant,
    Started,
)
from rl_sync.messages.master_calls import (
    AskBatch,
    Buffered,
    Claim,
    Happened,
    Trained,
    TrainerReady,
)
from rl_sync.messages.weight_calls import AskWaiting, AskWeights, AwaitGrant, GrantWeights, Withdraw
from rl_sync.roles.master.state import MasterState
from rl_sync.types import Lease, Prompt
from rl_sync.weights.rendezvous import Meeting, MeetingPoint

_PROMPT = Prompt(0, "", "")


class MeetingReset(NamedTuple):
    """One side of the transfers has died; see `MeetingPoint.reset`."""


class MeetingLeft(NamedTuple):
    """An explorer has died; see `MeetingPoint.leave`."""

    explorer: int


MeetingEvent = AskWeights | Withdraw | GrantWeights | MeetingReset | MeetingLeft
"""A call that changes the meeting point."""


def event_of(call: Call[Any]) -> Event | None:
    """Returns the event that a call tells the master; None if it tells none."""
    match call:
        case Claim(lease_ids):
            return GroupsBuffered(tuple(lease_ids))
        case Trained(event) | Happened(event):
            return event
        case TrainerReady(position):
            return Started(position)
        case AskBatch(step, at_hand):
            return BatchRequested(step, tuple(at_hand))
    return None


def answer_to(event: Event, state: MasterState, command: Command | None) -> Any:
    """Returns the answer to the call that an event came with.

    Args:
      state: state of the master after the event.
      command: the first command that is not a record; None without any.
    """
    if isinstance(event, GroupsBuffered):
        return [one for one in event.lease_ids if one not in state.live]
    if not isinstance(command, GrantLeases):
        return command
    leases = [
        Lease(one.lease_id, one.ordinal, 0 if command.exactly else one.attempt, _PROMPT)
        for one in command.leases
    ]
    return LeaseGrant(command.step, command.version, command.exactly, leases)


def buffered(state: MasterState) -> Buffered:
    """Returns the answer to `AskBuffered`."""
    leases = [one.lease_id for one in state.live.values() if one.buffered]
    return Buffered(state.trained_steps, leases)


def met(meeting: Meeting, event: MeetingEvent) -> tuple[Meeting, Any]:
    """Applies a call to a meeting point; returns its content afterwards, and the answer."""
    point = MeetingPoint(meeting)
    answer: Any = None
    match event:
        case AskWeights(explorer, exactly, at_least, number):
            answer = point.ask(explorer, exactly, at_least, number)
        case Withdraw(ticket):
            answer = point.withdraw(ticket)
        case GrantWeights(request, grant):
            answer = point.grant(request, *grant)
        case MeetingReset():
            point.reset()
        case MeetingLeft(explorer):
            point.leave(explorer)
    return point.content(), answer


def seen(meeting: Meeting, message: AwaitGrant | AskWaiting) -> Any:
    """Returns the grant or the requests that a call waits for; None if there are none."""
    point = MeetingPoint(meeting)
    if isinstance(message, AwaitGrant):
        return point.granted(message.ticket, 0.0)
    return point.waiting(0.0) or None
