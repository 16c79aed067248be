"""The master as a functional actor: which explorer generates what, and the fate of each group.

`transition(state, event) -> (state, commands)` decides everything: the prompts that an explorer
gets, the version of the weights, whether it may start at all, and the ledger that accounts for
every lease. It uses no clock (events carry the time), no threads and no network.

A lease ends in exactly one way: *trained*, or *dropped* for a reason that is recorded. Until then
it is *leased* (an explorer works on it, and each of its heartbeats moves `deadline_secs`) or
*buffered* (the group is in the replay buffer). If several steps may train on a group, its lease
stays buffered after the first of them, and ends as trained, however many follow.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

from rl_sync.messages.events import (
    EXPLORER_DIED,
    FORMED_ANEW,
    LEASE_EXPIRED,
    LEFT_OUT,
    RUN_ENDED,
    Assignment,
    BatchRequested,
    BatchTrained,
    Command,
    Event,
    ExplorerDied,
    ExplorersSeen,
    Finish,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsKept,
    GroupsRefused,
    GroupsScored,
    HoldBack,
    LeaseRequested,
    LeasesExpired,
    LeaveOutEvaluation,
    LiveLease,
    Position,
    Record,
    RunContinued,
    SnapshotSaved,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)
from rl_sync.roles.master.group_admission import admit
from rl_sync.roles.master.group_deadlines import deadline_of, room_by_deadline, take_batch
from rl_sync.roles.master.prompt_choice import chosen, may_choose
from rl_sync.roles.master.state import (
    DueEvaluation,
    LastGrant,
    MasterState,
    Outcome,
    counted,
    drop,
    settle,
)
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import ChosenPrompt


def transition(state: MasterState, event: Event) -> Outcome:
    """Handles one event.

    Returns:
      The next state, and the commands, in order.

    Raises:
      ValueError: the event contradicts the ledger: a lease that is not live, or a step out of
        order.
    """
    match event:
        case Started(position):
            return _start(state, position)
        case LeaseRequested():
            return _lease(state, event)
        case GroupsJudged():
            return admit(state, event)
        case GroupsScored(successes):
            return _score(state, successes), ()
        case GroupsKept(lease_ids):
            return _keep(state, lease_ids), ()
        case GroupsBuffered(lease_ids):
            return _buffer(state, lease_ids)
        case BatchRequested(_, at_hand):
            state, records = _buffer(state, at_hand)
            state, answer = take_batch(state, event)
            return state, (*records, *answer)
        case BatchTrained():
            return _train(state, event)
        case GroupsRefused(lease_ids, reason) if reason == FORMED_ANEW:
            return _form_anew(state, lease_ids)
        case GroupsRefused(lease_ids, reason):
            return drop(state, lease_ids, reason)
        case VersionPublished(version):
            return _publish(state, version)
        case ExplorersSeen(seen_secs):
            return _renew(state, seen_secs), ()
        case ExplorerDied(explorer):
            lost = tuple(
                lease.lease_id
                for lease in state.live.values()
                if not lease.buffered and lease.explorer == explorer
            )
            state = _given_up(state, explorer)
            if explorer in state.grants:
                rest = {other: one for other, one in state.grants.items() if other != explorer}
                state = dataclasses.replace(state, grants=rest)
            return drop(state, lost, EXPLORER_DIED)
        case Ticked(now):
            late = tuple(
                lease.lease_id
                for lease in state.live.values()
                if not lease.buffered and lease.deadline_secs < now
            )
            return drop(state, late, LEASE_EXPIRED)
        case LeasesExpired(lease_ids):
            return drop(state, lease_ids, LEASE_EXPIRED)
        case SnapshotSaved(step):
            left = {at: batch for at, batch in state.batches.items() if at > step}
            return dataclasses.replace(state, batches=left, turned_down=()), ()
        case RunContinued(drops_buffered):
            return _continue(state, drops_buffered)
        case StopRequested(reason):
            if state.stopping:
                return state, ()
            return dataclasses.replace(state, stopping=reason), ()


def may_free_work(event: Event, commands: Sequence[Command]) -> bool:
    """Says whether explorers that were held back may get work after an event.

    If so, explorers that wait for work ask again. If they asked after each group that is buffered,
    a step of N groups with N waiting explorers would take N² requests.

    Args:
      commands: commands of the transition.
    """
    match event:
        case LeaseRequested() | BatchRequested() | ExplorersSeen() | SnapshotSaved():
            return False
        case GroupsScored() | GroupsBuffered():
            return False
        case GroupsJudged() | Ticked():
            return any(isinstance(one, Record) and one.event == "dropped" for one in commands)
    return True


def _continue(state: MasterState, drops_buffered: bool) -> Outcome:
    due = tuple(one._replace(explorer=None) for one in state.evaluations)
    state = dataclasses.replace(state, stopping=None, grants={}, evaluations=due)
    live = state.live.values()
    state, records = drop(state, tuple(i.lease_id for i in live if not i.buffered), EXPLORER_DIED)
    if drops_buffered:
        state, more = _form_anew(state, tuple(state.live))
        records += more
    return state, records


def _form_anew(state: MasterState, lease_ids: tuple[int, ...]) -> Outcome:
    """Drops groups that are generated again, from weights that no process has any more.

    The trainer makes and publishes the versions after the counted step again. Until then no work of
    these is granted; see `_lease_exact`.
    """
    return drop(dataclasses.replace(state, newest=None), lease_ids, FORMED_ANEW)


def position(state: MasterState) -> Position:
    """Returns the position of the run; ordinals that are not trained will be leased again."""
    untrained = {(one.ordinal, one.replacement) for one in state.again}
    untrained |= {
        (lease.ordinal, lease.replacement) for lease in state.live.values() if not lease.trained
    }
    choices = [(one.ordinal, one.choice) for one in state.again]
    choices += [(one.ordinal, one.choice) for one in state.live.values() if not one.trained]
    follows = state.settings.follows_history
    return Position(
        step=state.trained_steps,
        next_ordinal=state.next_ordinal,
        again=tuple(sorted(untrained)),
        next_lease=state.next_lease,
        seen=tuple(state.history.seen()),
        pending=tuple(
            sorted(use for use in state.pending.values() if use.step <= state.trained_steps)
        ),
        prompts=tuple(
            sorted((at, choice.prompt) for at, choice in choices if follows and choice is not None)
        ),
    )


def end(state: MasterState) -> Outcome:
    """Closes the ledger: explorers have stopped, so the leases that they still held are dropped.

    Groups in the buffer that no step has trained on stay `buffered`.
    """
    held = tuple(
        lease.lease_id for lease in state.live.values() if lease.trained or not lease.buffered
    )
    why = state.stopping or RUN_ENDED
    state, left_out = _left_out(state, f"{why} before an explorer began it")
    state, records = drop(state, held, why)
    return state, (*left_out, *records)


def _start(state: MasterState, position: Position) -> Outcome:
    schedule = dataclasses.replace(state.settings.schedule, start=position.step)
    prompts = {
        at: ChosenPrompt(prompt)
        for at, prompt in position.prompts
        if prompt < state.settings.pool.count
    }
    return dataclasses.replace(
        state,
        settings=dataclasses.replace(state.settings, schedule=schedule),
        begun=True,
        trained_steps=position.step,
        next_ordinal=position.next_ordinal,
        next_lease=position.next_lease,
        again=tuple(
            Assignment(ordinal, 1, tried, choice=prompts.get(ordinal))
            for ordinal, tried in position.again
        ),
        history=PromptHistory.of_seen(position.seen),
        pending={(use.ordinal, use.replacement): use for use in position.pending},
    ), ()


def _publish(state: MasterState, version: int) -> Outcome:
    """Records the newest version, and whether it has to be evaluated.

    A trainer that is started again publishes older versions again, which changes nothing. When a
    version has to be evaluated, an earlier one that no explorer has begun is left out.
    """
    every, before = state.settings.evaluate_every_steps, state.newest
    if before is not None and version <= before:
        return state, ()
    state = dataclasses.replace(state, newest=version)
    if not every or before is None or version >= state.settings.steps:
        return state, ()
    if version // every == before // every:
        return state, ()
    why = f"that of version {version} was due before an explorer had room for it"
    state, left_out = _left_out(state, why)
    due = (*state.evaluations, DueEvaluation(version))
    return dataclasses.replace(state, evaluations=due), left_out


def _left_out(state: MasterState, why: str) -> tuple[MasterState, tuple[LeaveOutEvaluation, ...]]:
    """Leaves out the evaluations that no explorer has begun."""
    begun = tuple(one for one in state.evaluations if one.explorer is not None)
    late = (one.version for one in state.evaluations if one.explorer is None)
    left_out = tuple(LeaveOutEvaluation(version, why) for version in late)
    return dataclasses.replace(state, evaluations=begun), left_out


def _given_up(state: MasterState, explorer: int) -> MasterState:
    """Lets others make the evaluations of an explorer that has died."""
    due = tuple(
        one._replace(explorer=None) if one.explorer == explorer else one
        for one in state.evaluations
    )
    return dataclasses.replace(state, evaluations=due)


def _lease(state: MasterState, request: LeaseRequested) -> Outcome:
    """Answers a request; one that comes again gets the grant that it got, if that still holds."""
    if (again := _granted_before(state, request)) is not None:
        return state, (again,)
    state, commands = _new_lease(state, request)
    if request.request is None:
        return state, commands
    match commands[0]:
        case GrantLeases() as grant if grant.leases:
            last = LastGrant(request.request, leases=grant)
        case GrantEvaluation() as evaluation:
            last = LastGrant(request.request, evaluation=evaluation)
        case _:
            return state, commands
    return dataclasses.replace(state, grants={**state.grants, request.explorer: last}), commands


def _granted_before(
    state: MasterState, request: LeaseRequested
) -> GrantLeases | GrantEvaluation | None:
    """Returns the grant of a request that came before, without leases that have ended since."""
    last = state.grants.get(request.explorer)
    if last is None or request.request is None or last.request != request.request:
        return None
    if last.leases is None:
        asked = last.evaluation
        assert asked is not None, "a grant has leases or an evaluation"
        own = DueEvaluation(asked.version, request.explorer)
        return asked if own in state.evaluations else None
    alive = tuple(lease for lease in last.leases.leases if lease.lease_id in state.live)
    return last.leases._replace(leases=alive) if alive else None


def _new_lease(state: MasterState, request: LeaseRequested) -> Outcome:
    if state.finished:
        return state, (Finish(state.stopping or RUN_ENDED),)
    if state.newest is None:
        return state, (HoldBack("the first weights"),)
    if state.settings.schedule.pull == "exact":
        return _lease_exact(state, request)
    state, evaluation = _evaluation(state, request)
    return _lease_latest(state, request) if evaluation is None else (state, (evaluation,))


def _evaluation(
    state: MasterState, request: LeaseRequested
) -> tuple[MasterState, GrantEvaluation | None]:
    """Forgets the evaluations that an explorer has made, and gives it another if it has room.

    An explorer makes its evaluations in the order of its grants.
    """
    explorer = request.explorer
    own = [one for one in state.evaluations if one.explorer == explorer]
    made = own[: max(0, len(own) - request.evaluating)]
    due = [one for one in state.evaluations if one not in made]
    granted = None
    late = next((at for at, one in enumerate(due) if one.explorer is None), None)
    if late is not None and request.evaluating <= state.settings.evaluations_waiting:
        due[late] = due[late]._replace(explorer=explorer)
        granted = GrantEvaluation(due[late].version)
    if made or granted is not None:
        state = dataclasses.replace(state, evaluations=tuple(due))
    return state, granted


def _lease_exact(state: MasterState, request: LeaseRequested) -> Outcome:
    """Grants the explorer's share of the first explorer step that has work left for it.

    Work is granted once its version is published. An explorer that held work of a later version,
    and waited for it, could not generate an earlier group again that was lost, which the trainer
    needs before it can publish that version.
    """
    settings, newest = state.settings, state.newest
    assert newest is not None
    again = {one.ordinal: one for one in state.again}
    for step in range(state.trained_steps + 1, settings.steps + 1):
        share = settings.share(request.explorer, step)
        free = [ordinal for ordinal in share if ordinal not in state.ordinals]
        version = settings.schedule.exact_version(step)
        if free and (version > newest or not may_choose(state, step)):
            return state, (HoldBack("synchronization"),)
        if free:
            todo = [again.get(ordinal, Assignment(ordinal)) for ordinal in free]
            todo = [one if one.begun == version else one.anew() for one in todo]
            return _grant(state, request, step, version, True, todo[: settings.groups_per_lease])
    return state, (HoldBack("the end of training"),)


def _lease_latest(state: MasterState, request: LeaseRequested) -> Outcome:
    """Grants as many groups as the staleness bound allows.

    The n-th group among all trained and live ones will be trained by step n // B + 1, if no group
    that is leased later overtakes it. A group that several steps may train on takes one place for
    each of them; but a batch has B different groups. Where explorers finish groups in any order,
    each group has a deadline instead; see `rl_sync.roles.master.group_deadlines`.

    An explorer with unfinished groups is never held back, since other explorers may be held back
    until these groups are finished.

    An explorer to which newer weights still travel goes on with those that it has, as long as they
    leave room: so the time that weights travel counts toward staleness, and nobody waits for it.
    It also goes on with them if the newest weights would leave no room either.
    """
    settings, newest = state.settings, state.newest
    assert newest is not None
    per_step, times = settings.groups_per_step, settings.times_sampled
    uses_left = len(state.live) * times
    if times > 1:
        uses_left -= sum(lease.trained for lease in state.live.values())
    placed = state.trained_steps * per_step + uses_left
    version = newest if request.version is None else min(request.version, newest)
    last_step, room = _room(state, request, version, placed)
    if room <= 0 and version < newest:
        newer_last_step, newer_room = _room(state, request, newest, placed)
        if newer_room > 0:
            version, last_step, room = newest, newer_last_step, newer_room
    if room <= 0 and not request.unfinished:
        ends = placed >= settings.steps * per_step
        return state, (HoldBack("the end of training" if ends else "synchronization"),)
    count = max(0, room)
    step = max(0, placed + (count - 1) * times) // per_step + 1
    step = min(step, last_step) if count else step
    assert not count or settings.schedule.may_start(step, version)
    todo = _going_on(state, request, version, placed, state.again[:count])
    todo += [Assignment(state.next_ordinal + i) for i in range(count - len(todo))]
    return _grant(state, request, step, version, False, todo)


def _going_on(
    state: MasterState,
    request: LeaseRequested,
    version: int,
    placed: int,
    todo: Sequence[Assignment],
) -> list[Assignment]:
    """Lets completions go on as far as their older versions leave room; others begin anew.

    The ones that go on stand first, and of these the oldest.
    """
    begun = [(min(one.begun, version), one) for one in todo if one.begun is not None]
    goes_on, anew = list[Assignment](), [one for one in todo if one.begun is None]
    for since, one in sorted(begun, key=lambda pair: pair[0]):
        if _room(state, request, since, placed)[1] > len(goes_on):
            goes_on.append(one._replace(begun=since))
        else:
            anew.append(one.anew())
    return [*goes_on, *sorted(anew)]


def _room(
    state: MasterState, request: LeaseRequested, version: int, placed: int
) -> tuple[int, int]:
    """Returns the last step that may train on a version, and the groups that may begin with it.

    Args:
      placed: number of places in batches that earlier groups take.
    """
    settings = state.settings
    per_step, times = settings.groups_per_step, settings.times_sampled
    last_step = deadline_of(settings, version)
    if settings.carries_over:
        room = room_by_deadline(state, version)
    else:
        room = (last_step * per_step - placed) // times
        if last_step > state.trained_steps:
            room = max(room, per_step - len(state.live))
    left = settings.groups_per_lease - request.unfinished
    return last_step, min(left if request.room is None else request.room, room)


def _grant(
    state: MasterState,
    request: LeaseRequested,
    step: int,
    version: int,
    exactly: bool,
    todo: list[Assignment],
) -> Outcome:
    deadline = request.now_secs + state.settings.lease_secs
    state, todo = chosen(state, todo, step)
    leases = tuple(
        LiveLease(
            lease_id=state.next_lease + i,
            ordinal=one.ordinal,
            attempt=one.attempt,
            explorer=request.explorer,
            version=version if one.begun is None else one.begun,
            buffered=False,
            deadline_secs=deadline,
            replacement=one.replacement,
            failures=one.failures,
            choice=one.choice or ChosenPrompt(0),
            is_kept=one.begun is not None,
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


def _score(state: MasterState, successes: tuple[tuple[int, float], ...]) -> MasterState:
    live = dict(state.live)
    for lease_id, success in successes:
        if lease_id in live:
            live[lease_id] = live[lease_id]._replace(success=success)
    return dataclasses.replace(state, live=live)


def _keep(state: MasterState, lease_ids: tuple[int, ...]) -> MasterState:
    found = (state.live[lease_id] for lease_id in lease_ids if lease_id in state.live)
    kept = {one.lease_id: one._replace(is_kept=True) for one in found if not one.buffered}
    return dataclasses.replace(state, live={**state.live, **kept}) if kept else state


def _buffer(state: MasterState, lease_ids: tuple[int, ...]) -> Outcome:
    # If a lease expired while its explorer was at work, another explorer got its ordinal. The
    # trainer will find the late group in the buffer and refuse it, since the lease is not live.
    # Both the explorer and the trainer report a group, in either order; the first report counts.
    found = (state.live[lease_id] for lease_id in lease_ids if lease_id in state.live)
    leases = tuple(
        lease._replace(buffered=True, is_kept=False) for lease in found if not lease.buffered
    )
    if not leases:
        return state, ()
    live = {**state.live, **{lease.lease_id: lease for lease in leases}}
    return dataclasses.replace(state, live=live), (Record("buffered", leases),)


def _train(state: MasterState, event: BatchTrained) -> Outcome:
    batch = _checksum(event)
    if state.batches.get(event.step) == batch:
        return state, ()  # It is reported again, since the answer was lost.
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
    state = dataclasses.replace(
        state,
        trained_steps=event.step,
        live={**state.live, **used},
        batches={**state.batches, event.step: batch},
    )
    # The left-out groups are not replaced: their step is over.
    state, dropped = settle(state, over, LEFT_OUT)
    if not state.settings.follows_history:
        state = counted(state, event.step)
    records: tuple[Command, ...] = (Record("trained", tuple(trained), f"step {event.step}"),)
    return state, records + ((Record("dropped", dropped, LEFT_OUT),) if dropped else ())


def _checksum(event: BatchTrained) -> int:
    """Returns a number that distinguishes the batch of a step, the same in every process."""
    return zlib.crc32(repr((event.lease_ids, event.left_out, event.kept)).encode())


def _renew(state: MasterState, seen_secs: Mapping[int, float]) -> MasterState:
    renewed = {
        lease_id: lease._replace(
            deadline_secs=seen_secs[lease.explorer] + state.settings.lease_secs
        )
        for lease_id, lease in state.live.items()
        if not lease.buffered and lease.explorer in seen_secs
    }
    return dataclasses.replace(state, live={**state.live, **renewed}) if renewed else state
