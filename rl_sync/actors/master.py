"""The master as a functional actor: who generates what, and what became of it.

`transition(state, event) -> (state, commands)` decides everything: which prompts an explorer gets,
with which version of the weights, whether it may start at all, and the ledger that accounts for
every lease. It knows no clock (events carry the time), no threads and no network.

A lease ends in exactly one way: *trained*, or *dropped* for a reason that is recorded. Until then
it is *leased* (an explorer works on it) or *buffered* (it stands in the replay buffer). Where steps
may train on a group several times, its lease stays buffered after the first of them, and ends as
trained, however many follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rl_sync.actors.events import (
    EXPLORER_DIED,
    LEASE_EXPIRED,
    LEFT_OUT,
    RUN_ENDED,
    Admit,
    Assignment,
    BatchTrained,
    Command,
    DueEvaluation,
    Event,
    ExplorerDied,
    ExplorerSeen,
    Finish,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
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
    """The master's whole state.

    Attributes:
      newest: the newest published version, None before the first.
      trained_steps: finished trainer steps.
      live: leases that have not ended, by id.
      again: the work to lease again before new ordinals, in order.
      leased, trained, dropped: the number of leases given, trained, and dropped for each reason.
      out_of_attempts: the number of groups that teach nothing, but were admitted since no further
        prompt is tried in their place.
      evaluation: the evaluation that an explorer does, or that is to be done.
      stopping: the reason why the run is being stopped; None while it goes on.
    """

    settings: MasterSettings
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
    evaluation: DueEvaluation | None = None
    stopping: str | None = None

    @property
    def buffered(self) -> int:
        """Number of groups in the replay buffer."""
        return sum(lease.buffered for lease in self.live.values())

    @property
    def finished(self) -> bool:
        """True where there is nothing left to generate."""
        return self.stopping is not None or self.trained_steps >= self.settings.steps


Outcome = tuple[MasterState, tuple[Command, ...]]


def transition(state: MasterState, event: Event) -> Outcome:
    """Handles one event.

    Returns:
      The next state, and the commands, in order.

    Raises:
      ValueError: the event contradicts the ledger: a lease that is not live, a step out of order.
    """
    match event:
        case Started(position):
            return _start(state, position)
        case LeaseRequested():
            return _lease(state, event)
        case GroupsJudged(judged):
            return _screen(state, dict(judged))
        case GroupsBuffered(lease_ids):
            return _buffer(state, lease_ids)
        case BatchTrained():
            return _train(state, event)
        case GroupsRefused(lease_ids, reason):
            return _drop(state, lease_ids, reason)
        case VersionPublished(version):
            return _publish(state, version), ()
        case ExplorerSeen(explorer, now):
            return _renew(state, explorer, now), ()
        case ExplorerDied(explorer):
            lost = tuple(
                lease.lease_id
                for lease in state.live.values()
                if not lease.buffered and lease.explorer == explorer
            )
            if (due := state.evaluation) and due.explorer == explorer:
                state = dataclasses.replace(state, evaluation=due._replace(explorer=None))
            return _drop(state, lost, EXPLORER_DIED)
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
    """Returns the position of the run; every ordinal that is not trained will be leased again."""
    untrained = {(one.ordinal, one.replacement) for one in state.again}
    untrained |= {
        (lease.ordinal, lease.replacement) for lease in state.live.values() if not lease.trained
    }
    return Position(
        state.trained_steps, state.next_ordinal, tuple(sorted(untrained)), state.next_lease
    )


def end(state: MasterState) -> Outcome:
    """Closes the ledger: explorers have stopped, so what they still held is dropped.

    Groups that stand in the buffer, and that no step has trained on, stay `buffered`.
    """
    held = tuple(
        lease.lease_id for lease in state.live.values() if lease.trained or not lease.buffered
    )
    return _drop(state, held, state.stopping or RUN_ENDED)


def _start(state: MasterState, position: Position) -> Outcome:
    schedule = dataclasses.replace(state.settings.schedule, start=position.step)
    return dataclasses.replace(
        state,
        settings=dataclasses.replace(state.settings, schedule=schedule),
        trained_steps=position.step,
        next_ordinal=position.next_ordinal,
        next_lease=position.next_lease,
        again=tuple(Assignment(ordinal, 1, tried) for ordinal, tried in position.again),
    ), ()


def _publish(state: MasterState, version: int) -> MasterState:
    """Notes the newest version, and whether it is to be evaluated.

    An evaluation that nobody has begun, as explorers are slow, is replaced by the newer one.
    """
    every, before = state.settings.evaluate_every_steps, state.newest
    state = dataclasses.replace(state, newest=version)
    if not every or before is None or version >= state.settings.steps:
        return state
    if version // every == before // every:
        return state
    return dataclasses.replace(state, evaluation=DueEvaluation(version))


def _lease(state: MasterState, request: LeaseRequested) -> Outcome:
    if state.finished:
        return state, (Finish(state.stopping or RUN_ENDED),)
    if state.newest is None:
        return state, (HoldBack("the first weights"),)
    if state.settings.schedule.pull == "exact":
        return _lease_exact(state, request)
    if (due := state.evaluation) and due.explorer is None:
        held = due._replace(explorer=request.explorer)
        state = dataclasses.replace(state, evaluation=held)
        return state, (GrantEvaluation(due.version, due.version),)
    if due and due.explorer == request.explorer:  # Who asks again has done it.
        state = dataclasses.replace(state, evaluation=None)
    return _lease_latest(state, request)


def _lease_exact(state: MasterState, request: LeaseRequested) -> Outcome:
    """Grants the explorer's share of the first explorer step in which some of it is left to do."""
    settings = state.settings
    taken = {lease.ordinal for lease in state.live.values()}
    again = {one.ordinal: one for one in state.again}
    for step in range(state.trained_steps + 1, settings.steps + 1):
        share = settings.share(request.explorer, step)
        free = [ordinal for ordinal in share if ordinal not in taken]
        if free:
            todo = [again.get(ordinal, Assignment(ordinal)) for ordinal in free]
            version = settings.schedule.exact_version(step)
            return _grant(state, request, step, version, True, todo[: settings.groups_per_lease])
    return state, (HoldBack("the end of training"),)


def _lease_latest(state: MasterState, request: LeaseRequested) -> Outcome:
    """As many groups as the staleness bound leaves room for.

    A group that gets the n-th place among those that are trained or live will be trained at step
    n // B + 1 at the latest, if none that is leased later overtakes it. One that several steps may
    train on has a place for each of them; but a batch is of B different ones.

    An explorer with something unfinished is never held back: it may be what others wait for.
    """
    settings, newest = state.settings, state.newest
    assert newest is not None
    per_step, times = settings.groups_per_step, settings.times_sampled
    uses_left = sum(times - lease.trained for lease in state.live.values())
    placed = state.trained_steps * per_step + uses_left
    last_step = min(
        settings.steps, _oldest_under_way(state, newest) + settings.schedule.max_staleness + 1
    )
    room = (last_step * per_step - placed) // times
    if last_step > state.trained_steps:
        room = max(room, per_step - len(state.live))
    left = settings.groups_per_lease - request.unfinished
    room = min(left if request.room is None else request.room, room)
    if room <= 0 and not request.unfinished:
        ends = placed >= settings.steps * per_step
        return state, (HoldBack("the end of training" if ends else "synchronization"),)
    count = max(0, room)
    step = max(0, placed + (count - 1) * times) // per_step + 1
    step = min(step, last_step) if count else step
    assert not count or settings.schedule.may_start(step, newest)
    todo = list(state.again[:count])
    todo += [Assignment(state.next_ordinal + i) for i in range(count - len(todo))]
    return _grant(state, request, step, newest, False, todo)


def _oldest_under_way(state: MasterState, newest: int) -> int:
    """Returns the version that limits how far ahead of the trainer groups may be begun.

    Other groups overtake one that is carried over. So no more of them are begun than can be trained
    before it becomes too stale. The trainer then waits for it, until its lease expires, and does
    not refuse it. So long completions are trained on like short ones.
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
    todo: list[Assignment],
) -> Outcome:
    deadline = request.now_secs + state.settings.lease_secs
    leases = tuple(
        LiveLease(
            lease_id=state.next_lease + i,
            ordinal=one.ordinal,
            attempt=one.attempt,
            explorer=request.explorer,
            version=version,
            buffered=False,
            deadline_secs=deadline,
            replacement=one.replacement,
        )
        for i, one in enumerate(todo)
    )
    grant = GrantLeases(step, version, exactly, leases)
    if not leases:
        return state, (grant,)
    granted = {one.ordinal for one in todo}
    state = dataclasses.replace(
        state,
        next_lease=state.next_lease + len(leases),
        next_ordinal=max(state.next_ordinal, max(granted) + 1),
        again=tuple(one for one in state.again if one.ordinal not in granted),
        live={**state.live, **{lease.lease_id: lease for lease in leases}},
        leased=state.leased + len(leases),
    )
    return state, (grant, Record("leased", leases))


def _screen(state: MasterState, judged: Mapping[int, tuple[float, ...]]) -> Outcome:
    """Drops groups that teach nothing; other prompts are tried in their places."""
    screening, admitted = state.settings.screening, []
    replaced: dict[str, list[int]] = {}
    out_of_attempts: dict[str, list[LiveLease]] = {}
    for lease_id, rewards in judged.items():
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
        state, records = _drop(state, tuple(lease_ids), fault, replaced=True)
        commands += records
    return state, tuple(commands)


def _buffer(state: MasterState, lease_ids: tuple[int, ...]) -> Outcome:
    # If a lease expired while its explorer was at work, another explorer has got its ordinal. The
    # trainer will find the late group in the buffer and refuse it, since its lease is not live.
    # Both the explorer and the trainer report a group, in either order; the first report counts.
    found = (state.live[lease_id] for lease_id in lease_ids if lease_id in state.live)
    leases = tuple(lease._replace(buffered=True) for lease in found if not lease.buffered)
    if not leases:
        return state, ()
    live = {**state.live, **{lease.lease_id: lease for lease in leases}}
    return dataclasses.replace(state, live=live), (Record("buffered", leases),)


def _train(state: MasterState, event: BatchTrained) -> Outcome:
    if event.step != state.trained_steps + 1:
        raise ValueError(f"trainer step {event.step} reported after step {state.trained_steps}.")
    consumed = (*event.lease_ids, *event.left_out)
    unknown = [lease_id for lease_id in consumed if lease_id not in state.live]
    if unknown:
        raise ValueError(
            f"trainer step {event.step} consumed groups whose leases are over: {unknown}."
        )
    trained = [state.live[lease_id] for lease_id in event.lease_ids]
    used = {lease.lease_id: lease._replace(trained=lease.trained + 1) for lease in trained}
    over = [lease for lease_id, lease in used.items() if lease_id not in event.kept]
    over += [state.live[lease_id] for lease_id in event.left_out]
    state = dataclasses.replace(state, trained_steps=event.step, live={**state.live, **used})
    # The places of what is left out are not to be filled again: the step they were for is over.
    state, dropped = _settle(state, over, LEFT_OUT)
    records: tuple[Command, ...] = (Record("trained", tuple(trained), f"step {event.step}"),)
    return state, records + ((Record("dropped", dropped, LEFT_OUT),) if dropped else ())


def _drop(
    state: MasterState, lease_ids: tuple[int, ...], reason: str, replaced: bool = False
) -> Outcome:
    leases = [state.live[lease_id] for lease_id in lease_ids if lease_id in state.live]
    state, dropped = _settle(state, leases, reason)
    if not dropped:
        return state, ()
    again = {*state.again, *(lease.next_assignment(replaced) for lease in dropped)}
    state = dataclasses.replace(state, again=tuple(sorted(again)))
    return state, (Record("dropped", dropped, reason),)


def _settle(
    state: MasterState, leases: Sequence[LiveLease], reason: str
) -> tuple[MasterState, tuple[LiveLease, ...]]:
    """Ends leases: as trained where a step has trained on the group, else as dropped.

    Returns:
      The state, and those that are dropped.
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
    return state, dropped


def _renew(state: MasterState, explorer: int, now: float) -> MasterState:
    deadline = now + state.settings.lease_secs
    live = {
        lease_id: lease._replace(deadline_secs=deadline)
        if lease.explorer == explorer and not lease.buffered
        else lease
        for lease_id, lease in state.live.items()
    }
    return dataclasses.replace(state, live=live)
