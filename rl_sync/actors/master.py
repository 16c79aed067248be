"""The master as a functional actor: who generates what, and what became of it.

`transition(state, event) -> (state, commands)` decides everything: which prompts an explorer gets,
with which version of the weights, whether it may start at all, and the ledger that accounts for
every lease. It knows no clock (events carry the time), no threads and no network.

A lease ends in exactly one way: *trained*, or *dropped* for a reason that is recorded. Until then
it is *leased* (an explorer works on it) or *buffered* (it stands in the replay buffer).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rl_sync.actors.events import (
    LEASE_EXPIRED,
    RUN_ENDED,
    BatchTrained,
    Command,
    Event,
    ExplorerSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    LeaseRequested,
    LiveLease,
    MasterSettings,
    Position,
    Record,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)


@dataclasses.dataclass(frozen=True)
class MasterState:
    """The master's whole memory.

    Attributes:
      newest: the newest published version, None before the first.
      trained_steps: finished trainer steps.
      live: leases that have not ended, by id.
      again: (ordinal, attempt) to be leased again before new ones.
      leased, trained, dropped: how many leases were given, trained, dropped for each reason.
      stopping: why the run is being stopped, None while it goes on.
    """

    settings: MasterSettings
    newest: int | None = None
    trained_steps: int = 0
    next_ordinal: int = 0
    next_lease: int = 0
    again: tuple[tuple[int, int], ...] = ()
    live: Mapping[int, LiveLease] = dataclasses.field(default_factory=dict)
    leased: int = 0
    trained: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    stopping: str | None = None

    @property
    def buffered(self) -> int:
        """Groups that stand in the replay buffer."""
        return sum(lease.buffered for lease in self.live.values())

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to generate."""
        return self.stopping is not None or self.trained_steps >= self.settings.steps


Outcome = tuple[MasterState, tuple[Command, ...]]


def transition(state: MasterState, event: Event) -> Outcome:
    """Takes one event.

    Returns:
      The next state, and what the event gives rise to, in order.

    Raises:
      ValueError: the event contradicts the ledger: a lease that is not live, a step out of order.
    """
    match event:
        case Started(position):
            return _start(state, position)
        case LeaseRequested():
            return _lease(state, event)
        case GroupsBuffered(lease_ids):
            return _buffer(state, lease_ids)
        case BatchTrained(step, lease_ids):
            return _train(state, step, lease_ids)
        case GroupsRefused(lease_ids, reason):
            return _drop(state, lease_ids, reason)
        case VersionPublished(version):
            return dataclasses.replace(state, newest=version), ()
        case ExplorerSeen(explorer, now):
            return _renew(state, explorer, now), ()
        case Ticked(now):
            late = tuple(
                lease.lease_id
                for lease in state.live.values()
                if not lease.buffered and lease.deadline_secs < now
            )
            return _drop(state, late, LEASE_EXPIRED)
        case StopRequested(reason):
            return dataclasses.replace(state, stopping=state.stopping or reason), ()


def position(state: MasterState) -> Position:
    """Where the run stands: everything that is not trained is to be leased again."""
    untrained = {ordinal for ordinal, _ in state.again}
    untrained |= {lease.ordinal for lease in state.live.values()}
    return Position(
        state.trained_steps, state.next_ordinal, tuple(sorted(untrained)), state.next_lease
    )


def end(state: MasterState) -> Outcome:
    """Closes the ledger: explorers have stopped, so what they still held is dropped.

    Groups that stand in the buffer stay `buffered`.
    """
    held = tuple(lease.lease_id for lease in state.live.values() if not lease.buffered)
    return _drop(state, held, state.stopping or RUN_ENDED)


def _start(state: MasterState, position: Position) -> Outcome:
    schedule = dataclasses.replace(state.settings.schedule, start=position.step)
    return dataclasses.replace(
        state,
        settings=dataclasses.replace(state.settings, schedule=schedule),
        trained_steps=position.step,
        next_ordinal=position.next_ordinal,
        next_lease=position.next_lease,
        again=tuple((ordinal, 1) for ordinal in position.again),
    ), ()


def _lease(state: MasterState, request: LeaseRequested) -> Outcome:
    if state.finished:
        return state, (Finish(state.stopping or RUN_ENDED),)
    if state.newest is None:
        return state, (HoldBack("the first weights"),)
    if state.settings.schedule.pull == "exact":
        return _lease_exact(state, request)
    return _lease_latest(state, request)


def _lease_exact(state: MasterState, request: LeaseRequested) -> Outcome:
    """The explorer's share of the first explorer step in which something of it is left to do."""
    settings = state.settings
    taken = {lease.ordinal for lease in state.live.values()}
    attempts = dict(state.again)
    for step in range(state.trained_steps + 1, settings.steps + 1):
        share = settings.share(request.explorer, step)
        free = [ordinal for ordinal in share if ordinal not in taken]
        if free:
            todo = [(ordinal, attempts.get(ordinal, 0)) for ordinal in free]
            version = settings.schedule.exact_version(step)
            return _grant(state, request, step, version, True, todo[: settings.groups_per_lease])
    return state, (HoldBack("the end of training"),)


def _lease_latest(state: MasterState, request: LeaseRequested) -> Outcome:
    """As many groups as the staleness bound leaves room for.

    A group that gets the n-th place among those that are trained or live will be trained at step
    n // B + 1 at the latest, if none that is leased later overtakes it.

    An explorer with something unfinished is never held back: it may be what others wait for.
    """
    settings, newest = state.settings, state.newest
    assert newest is not None
    per_step = settings.groups_per_step
    placed = state.trained_steps * per_step + len(state.live)
    last_step = min(
        settings.steps, _oldest_under_way(state, newest) + settings.schedule.max_staleness + 1
    )
    room = min(settings.groups_per_lease - request.unfinished, last_step * per_step - placed)
    if room <= 0 and not request.unfinished:
        ends = placed >= settings.steps * per_step
        return state, (HoldBack("the end of training" if ends else "synchronization"),)
    count = max(0, room)
    step = max(0, placed + count - 1) // per_step + 1
    assert not count or settings.schedule.may_start(step, newest)
    todo = list(state.again[:count])
    todo += [(state.next_ordinal + i, 0) for i in range(count - len(todo))]
    return _grant(state, request, step, newest, False, todo)


def _oldest_under_way(state: MasterState, newest: int) -> int:
    """The version that decides how far ahead of the trainer groups may be begun.

    A group that is carried over is overtaken by others. So no more of those are begun than can be
    trained before it becomes too stale: then it is still waited for, until its lease expires,
    rather than refused, and long completions are trained on like short ones.
    """
    if not state.settings.carries_over:
        return newest
    under_way = (lease.version for lease in state.live.values() if not lease.buffered)
    return min([newest, *under_way])


def _grant(
    state: MasterState,
    request: LeaseRequested,
    step: int,
    version: int,
    exactly: bool,
    todo: list[tuple[int, int]],
) -> Outcome:
    deadline = request.now_secs + state.settings.lease_secs
    leases = tuple(
        LiveLease(
            state.next_lease + i, ordinal, attempt, request.explorer, version, False, deadline
        )
        for i, (ordinal, attempt) in enumerate(todo)
    )
    grant = GrantLeases(step, version, exactly, leases)
    if not leases:
        return state, (grant,)
    granted = {ordinal for ordinal, _ in todo}
    state = dataclasses.replace(
        state,
        next_lease=state.next_lease + len(leases),
        next_ordinal=max(state.next_ordinal, max(granted) + 1),
        again=tuple(entry for entry in state.again if entry[0] not in granted),
        live={**state.live, **{lease.lease_id: lease for lease in leases}},
        leased=state.leased + len(leases),
    )
    return state, (grant, Record("leased", leases))


def _buffer(state: MasterState, lease_ids: tuple[int, ...]) -> Outcome:
    # A lease that expired while its explorer was at work has been given to another one: the
    # trainer will find the group in the buffer and refuse it, since its lease is not live.
    leases = tuple(
        state.live[lease_id]._replace(buffered=True)
        for lease_id in lease_ids
        if lease_id in state.live
    )
    live = {**state.live, **{lease.lease_id: lease for lease in leases}}
    return dataclasses.replace(state, live=live), (Record("buffered", leases),)


def _train(state: MasterState, step: int, lease_ids: tuple[int, ...]) -> Outcome:
    if step != state.trained_steps + 1:
        raise ValueError(f"trainer step {step} reported after step {state.trained_steps}.")
    unknown = [lease_id for lease_id in lease_ids if lease_id not in state.live]
    if unknown:
        raise ValueError(f"trainer step {step} consumed groups whose leases are over: {unknown}.")
    leases = tuple(state.live[lease_id] for lease_id in lease_ids)
    gone = set(lease_ids)
    state = dataclasses.replace(
        state,
        trained_steps=step,
        live={i: lease for i, lease in state.live.items() if i not in gone},
        trained=state.trained + len(leases),
    )
    return state, (Record("trained", leases, f"step {step}"),)


def _drop(state: MasterState, lease_ids: tuple[int, ...], reason: str) -> Outcome:
    leases = tuple(state.live[lease_id] for lease_id in lease_ids if lease_id in state.live)
    if not leases:
        return state, ()
    gone = {lease.lease_id for lease in leases}
    again = {*state.again, *((lease.ordinal, lease.attempt + 1) for lease in leases)}
    state = dataclasses.replace(
        state,
        live={i: lease for i, lease in state.live.items() if i not in gone},
        again=tuple(sorted(again)),
        dropped={**state.dropped, reason: state.dropped.get(reason, 0) + len(leases)},
    )
    return state, (Record("dropped", leases, reason),)


def _renew(state: MasterState, explorer: int, now: float) -> MasterState:
    deadline = now + state.settings.lease_secs
    live = {
        lease_id: lease._replace(deadline_secs=deadline)
        if lease.explorer == explorer and not lease.buffered
        else lease
        for lease_id, lease in state.live.items()
    }
    return dataclasses.replace(state, live=live)
