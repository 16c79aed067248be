"""The master in the simulation: the real transition behind a journal on the disk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rl_sync.cluster.pending import Await
from rl_sync.messages.events import (
    LEASE_EXPIRED,
    BatchTrained,
    Event,
    ExplorerDied,
    ExplorersSeen,
    GroupsBuffered,
    GroupsJudged,
    GroupsKept,
    GroupsRefused,
    HoldBack,
    LeaseGrant,
    LeaseRequested,
    Record,
    SnapshotSaved,
    Ticked,
)
from rl_sync.messages.master_calls import (
    AskBuffered,
    AskLease,
    AskPosition,
    AskProgress,
    AskStatus,
    EnterPhase,
    HandInEvaluation,
    Happened,
    Progress,
    Report,
    Resumed,
    TellProgress,
    Trained,
)
from rl_sync.messages.run_status import RunStatus
from rl_sync.messages.weight_calls import (
    AskNewest,
    AskWaiting,
    AskWeights,
    AwaitGrant,
    GrantWeights,
    Withdraw,
)
from rl_sync.records.flow import Fate
from rl_sync.records.run_totals import NUM_TOKENS
from rl_sync.role_names import TRAINER
from rl_sync.roles.master.kept_progress import KeptProgress
from rl_sync.roles.master.state import MasterSettings, MasterState
from rl_sync.roles.master.transition import may_free_work, transition
from rl_sync.roles.master.transition import position as position_of
from rl_sync.simulation.faults.processes import (
    Answerer,
    ArrivedCall,
    SimulatedProcess,
    Surroundings,
)
from rl_sync.simulation.faults.relays import (
    AskPath,
    RelayFailed,
    RelayJoined,
    RelayLeft,
    addresses_after,
    tree_of,
)
from rl_sync.simulation.master_answers import (
    MeetingEvent,
    MeetingLeft,
    MeetingReset,
    answer_to,
    buffered,
    event_of,
    met,
    seen,
)
from rl_sync.types import Lease
from rl_sync.weights.rendezvous import Meeting

LEASE_SECS = 8.0
TICK_SECS = 2.0
FLUSH_SECS = 0.05
_ATTEMPTS = 3
_KEPT_BYTES = {False: 200, True: 700}
"""Room for the tokens of some groups in flight, and not for those of all: completions, episodes."""


class TrainerLost(NamedTuple):
    """The launcher starts the trainer again, of whose lives this one has ended."""

    life: int


class ExplorerLost(NamedTuple):
    """The launcher has seen an explorer die, in one of its lives."""

    explorer: int
    life: int


LastingEvent = MeetingEvent | RelayJoined | RelayLeft
"""An event that changes what the master knows about weights."""

Thread = tuple[str, int, str]
"""A thread of a life of a process."""


class JournalLine(NamedTuple):
    """A line of the journal: an event, and the call that it came with."""

    event: Event | LastingEvent
    thread: Thread | None
    number: int
    tokens: int


class Remembered(NamedTuple):
    """Everything that the master knows and cannot ask for again.

    Attributes:
      state: the state.
      calls: the newest call of each thread of each process, and its answer.
      tokens: tokens of each reported step.
      fates: what became of each lease so far, by the lines of the ledger.
      meeting: requests and grants of collective transfers.
      relays: address of each explorer's process that hands on blocks.
    """

    state: MasterState
    calls: dict[Thread, tuple[int, Any]]
    tokens: dict[int, int]
    fates: dict[int, Fate]
    meeting: Meeting = Meeting()
    relays: Mapping[str, str] = MappingProxyType({})


def _copied(known: Remembered) -> Remembered:
    return known._replace(calls={**known.calls}, tokens={**known.tokens}, fates={**known.fates})


class SimulatedMaster(SimulatedProcess):
    """Answers calls; whatever an answer depends on is flushed before."""

    def __init__(self, world: Surroundings, name: str) -> None:
        super().__init__(world, name)
        run = world.run
        self._settings = MasterSettings(
            schedule=run.schedule,
            steps=run.steps,
            groups_per_step=run.groups_generated,
            explorers=run.explorers,
            groups_per_lease=run.groups,
            lease_secs=LEASE_SECS,
            carries_over=run.style != "whole",
            screening=run.screening,
            max_leases=_ATTEMPTS if run.screens else 1,
            times_sampled=run.times_sampled,
            evaluate_every_steps=run.evaluate_every_steps,
            seed=run.seed,
        )

    def begin(self) -> None:
        """Folds the transition over the journal."""
        self._lives: dict[str, int] = {}
        self._answers: dict[Thread, tuple[int, Any]] = {}
        self._numbers_seen: dict[Thread, int] = {}
        self._waiting: dict[Thread, Callable[[], None]] = {}
        self._unsent: list[Callable[[], None]] = []
        self._is_dirty = self._wakes = False
        self._kept = KeptProgress(_KEPT_BYTES[self.world.run.plays])
        self.known = self._recovered()
        self._tree = tree_of(self.world.run.fanout or 1, self.known.relays)
        self.world.invariants.master_restarted(self.known.state)
        self._save()
        self._see(range(1, self.world.run.explorers + 1))  # The clock is another one.
        self.after(TICK_SECS, self._tick)

    @property
    def _now(self) -> float:
        return self.world.queue.now_secs

    # The journal.

    def journals(self) -> list[str]:
        """Returns the names of the journals, oldest first."""
        return self.world.disk.names("journal-")

    def chosen_journal(self) -> str | None:
        """Returns the name of the journal to read; None for a new run."""
        return max(self.journals(), default=None)

    def flush(self, name: str) -> None:
        """Makes a file durable before it gets its name."""
        self.world.disk.flush(name)

    def send_after_flush(self) -> bool:
        """Says whether answers wait until what they depend on is durable."""
        return True

    def _recovered(self) -> Remembered:
        name = self.chosen_journal()
        lines = self.world.disk.read(name) if name else []
        if not lines:
            return Remembered(MasterState(self._settings), {}, {}, {})
        first, *entries = lines
        known = _copied(first)
        for entry in entries:
            known, _, _ = self._folded(known, entry)
        return known

    def _folded(
        self, known: Remembered, entry: JournalLine
    ) -> tuple[Remembered, Any, tuple[Any, ...]]:
        """Applies one line of the journal; returns what is known then, the answer, the commands."""
        if isinstance(entry.event, MeetingEvent):
            meeting, answer = met(known.meeting, entry.event)
            if meeting == known.meeting:
                return known, answer, ()
            if entry.thread is not None:
                known.calls[entry.thread] = entry.number, answer
            return known._replace(meeting=meeting), answer, ()
        if isinstance(entry.event, RelayJoined | RelayLeft):
            return known._replace(relays=addresses_after(known.relays, entry.event)), None, ()
        state, commands = transition(known.state, entry.event)
        answers = [one for one in commands if not isinstance(one, Record)]
        answer = answer_to(entry.event, state, answers[0] if answers else None)
        if state is known.state:
            return known, answer, commands
        if isinstance(entry.event, BatchTrained):
            known.tokens[entry.event.step] = entry.tokens
        if entry.thread is not None:
            known.calls[entry.thread] = entry.number, answer
        for one in commands:
            if isinstance(one, Record) and (fate := Fate.after(one.event, one.reason)):
                known.fates.update((lease.lease_id, fate) for lease in one.leases)
        return known._replace(state=state), answer, commands

    def _save(self) -> None:
        """Begins a journal with the whole state, and deletes the one before the last."""
        disk, names, known = self.world.disk, self.journals(), self.known
        number = 1 + max((int(name.split("-")[1]) for name in names), default=0)
        name, partial = f"journal-{number:04d}", "partial-journal"
        disk.write(self.name, partial, [_copied(known)])
        self.flush(partial)
        self.command("rename the journal")
        disk.rename(partial, name)
        self._journal, self._is_dirty = name, False
        for old in self.journals()[:-2]:
            disk.delete(old)

    def _apply(
        self,
        event: Event | LastingEvent,
        thread: Thread | None = None,
        number: int = 0,
        tokens: int = 0,
    ) -> Any:
        """Applies an event, and writes it to the journal if it changes anything."""
        entry, before = JournalLine(event, thread, number, tokens), self.known
        self.known, answer, commands = self._folded(self.known, entry)
        if self.known is not before:
            self._kept.keep_only(self.known.state.kept)
            self.world.invariants.mastered(self.known.state, self.known.tokens)
            self.world.disk.append(self.name, self._journal, entry)
            self._write_soon()
            frees = isinstance(event, LastingEvent) or may_free_work(event, commands)
            if frees and self._waiting and not self._wakes:
                self._wakes = True
                self.after(0.0, self._wake)
        return answer

    def _write_soon(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self.after(FLUSH_SECS, self._flush)

    def _flush(self) -> None:
        self.command("flush the journal")
        self.world.disk.flush(self._journal)
        self._is_dirty = False
        self.command("send the answers")
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            send()

    # Calls.

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """See `SimulatedProcess`."""
        if request.life < self._lives.get(request.client, 0):
            return  # Its process is dead.
        self._lives[request.client] = request.life
        thread = (request.client, request.life, request.channel)
        if self.answered_before(thread, request, answer):
            return
        self.command(request.message)
        if isinstance(request.message, AskLease | AskNewest | AwaitGrant | AskWaiting):
            self._try(thread, request, answer, self._now + request.poll_secs)
        else:
            self._reply(thread, request, answer, self._result(thread, request))

    def answered_before(self, thread: Thread, request: ArrivedCall, answer: Answerer) -> bool:
        """Gives a call that comes again the same answer; ignores one that was given up."""
        number = request.number
        if number < self._numbers_seen.get(thread, 0):
            return True
        self._numbers_seen[thread] = number
        for known in (self._answers, self.known.calls):
            if thread in known and known[thread][0] == number:
                self._reply(thread, request, answer, known[thread][1])
                return True
        return False

    def _result(self, thread: Thread, request: ArrivedCall) -> Any:
        message, number = request.message, request.number
        match message:
            case Trained(event, metrics):
                return self._apply(event, thread, number, int(metrics[NUM_TOKENS]))
            case AskProgress():
                return self._progress()
            case AskBuffered():
                return buffered(self.known.state)
            case AskPosition():
                return position_of(self.known.state)
            case Happened(SnapshotSaved()):
                return self._save()
            case EnterPhase() | Report() | Resumed() | Await() | HandInEvaluation():
                return None
            case ExplorersSeen(seen_secs):
                return self._see(seen_secs)
            case TrainerLost(life):
                self.forget(TRAINER, life)
                return self._apply(MeetingReset(), thread, number)
            case ExplorerLost(explorer, life):
                self.forget(f"explorer{explorer}", life)
                self._tree.leave(f"explorer{explorer}")
                self._apply(RelayLeft(f"explorer{explorer}"))
                self._apply(MeetingLeft(explorer))
                return self._apply(ExplorerDied(explorer), thread, number)
            case GroupsBuffered() | GroupsRefused() | GroupsJudged():
                return self._apply(message, thread, number)
            case TellProgress(parts):
                lacking, kept = self._kept.take(parts, self.known.state.live)
                if kept:
                    self._apply(GroupsKept(kept))
                return lacking
            case RelayJoined(reader, address):
                self._tree.join(reader, address)
                return self._apply(message, thread, number)
            case AskPath(reader):
                return self._tree.path(reader, self._now)
            case RelayFailed(source):
                return self._tree.report(source, 0, 0.0, True, self._now)
            case AskStatus():
                is_over = self.known.state.trained_steps == self._settings.steps
                return RunStatus("end" if is_over else "rl", 0, 0)
            case AskWeights() | Withdraw() | GrantWeights():
                return self._apply(message, thread, number)
        if (told := event_of(message)) is not None:
            return self._apply(told, thread, number)
        raise AssertionError(f"the master does not know {message}")

    def forget(self, process: str, life: int) -> None:
        """Forgets requests of a dead process that wait for an answer."""
        self._lives[process] = life + 1
        for thread in [*self._waiting]:
            if thread[0] == process and thread[1] <= life:
                del self._waiting[thread]

    def _reply(self, thread: Thread, request: ArrivedCall, answer: Answerer, result: Any) -> None:
        self._answers[thread] = request.number, result
        if self._is_dirty and self.send_after_flush():
            self._unsent.append(functools.partial(answer, result))
        else:
            answer(result)

    def _try(self, thread: Thread, request: ArrivedCall, answer: Answerer, until: float) -> None:
        """Answers a call that may wait; it is tried again once something changes."""
        self._waiting.pop(thread, None)
        is_over = self._now >= until
        result = self._tried(thread, request)
        if is_over or not (isinstance(result, HoldBack) or result is None):
            if isinstance(request.message, AskNewest):
                result = self._newest()
            elif isinstance(request.message, AskWaiting):
                result = result or []
            self._reply(thread, request, answer, result)
            return
        again = functools.partial(self._try, thread, request, answer, until)

        def expire() -> None:
            if self._waiting.get(thread) is again:
                again()

        self._waiting[thread] = again
        self.after(until - self._now, expire)

    def _tried(self, thread: Thread, request: ArrivedCall) -> Any:
        message = request.message
        if isinstance(message, AskNewest):
            return self._newest() if self._newest() >= message.at_least else None
        if isinstance(message, AwaitGrant | AskWaiting):
            return seen(self.known.meeting, message)
        event = LeaseRequested(
            message.explorer,
            self._now,
            message.unfinished,
            message.room,
            message.version,
            evaluating=message.evaluating,
        )
        answer = self._apply(event, thread, request.number)
        if not isinstance(answer, LeaseGrant):
            return answer
        return answer._replace(leases=[self._with_begun(lease) for lease in answer.leases])

    def _with_begun(self, lease: Lease) -> Lease:
        """Returns a lease with the tokens that are kept of its group."""
        one = self.known.state.live[lease.lease_id]
        begun = self._kept.of(lease.ordinal) if one.is_kept else ()
        for _, progress in begun:
            self.world.invariants.gives(one, int(progress.versions.min()))
        return lease._replace(begun=begun)

    def _newest(self) -> int:
        newest = self.known.state.newest
        return -1 if newest is None else newest

    def _wake(self) -> None:
        self._wakes = False
        for again in [*self._waiting.values()]:
            again()

    # Time, and groups that are gone.

    def _see(self, explorers: Iterable[int]) -> None:
        """Renews the leases of explorers; a journal that is read renews all of them."""
        seen = ExplorersSeen(dict.fromkeys(explorers, self._now))
        state, _ = transition(self.known.state, seen)
        self.known = self.known._replace(state=state)

    def _tick(self) -> None:
        """Drops late leases.

        Heartbeats are not in the journal, so the late leases are: otherwise more of them would be
        late when the journal is read.
        """
        _, commands = transition(self.known.state, Ticked(self._now))
        late = [lease for one in commands if isinstance(one, Record) for lease in one.leases]
        if late:
            self._apply(GroupsRefused(tuple(one.lease_id for one in late), LEASE_EXPIRED))
        self.after(TICK_SECS, self._tick)

    def _progress(self) -> Progress | None:
        """Returns the run so far, for a trainer that was started; None before it has begun."""
        state, run = self.known.state, self.world.run
        if not state.begun:
            return None
        return Progress(0, state.trained_steps, [], drops_buffered=run.is_joint and run.is_exact)
