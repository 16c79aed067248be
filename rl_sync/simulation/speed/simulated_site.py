"""The place where a simulated run happens: virtual time, the master, the buffer, and the records.

Its roles are the real loops. Waits end with what they wait for: a real loop looks every second or
so, and a virtual one would do nothing else.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rl_sync.messages.call import Call
from rl_sync.messages.events import (
    Command,
    Event,
    HoldBack,
    LeaseRequested,
    Position,
    Record,
    Started,
)
from rl_sync.messages.master_calls import AskBuffered, AskLease, AskStatus, TrainerReady
from rl_sync.messages.run_status import RunStatus
from rl_sync.messages.weight_calls import AskNewest, AskWaiting, AwaitGrant
from rl_sync.ports.clock_port import Future
from rl_sync.records.flow import Fate
from rl_sync.records.spans import Span, SpanKind, sync_kind
from rl_sync.records.tokens.token_account import TokenAccount, account
from rl_sync.records.tokens.token_lives import GroupTokens, TokenLife
from rl_sync.roles.master.state import MasterState
from rl_sync.roles.master.transition import may_free_work, transition
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.master_answers import MeetingEvent, answer_to, buffered, event_of, met, seen
from rl_sync.simulation.simulated_session import SimulatedSession, VirtualSpans
from rl_sync.simulation.speed.judge_pool import JudgePool
from rl_sync.simulation.speed.shared_machine import SharedMachine
from rl_sync.simulation.speed.speed_plan import SpeedPlan
from rl_sync.simulation.speed.workload import Samples, Workload
from rl_sync.simulation.virtual_clock import VirtualClock, Waiters
from rl_sync.weights.rendezvous import Meeting

_OF_ANSWER = 0.25
"""Part of `CallTimes.lease` that the answer takes: one of two ways, of two calls."""

Heard = Callable[[float, Event], None]
"""A function that is called with each event that the master handles, and its virtual time."""

T = TypeVar("T")


def unheard(time_secs: float, event: Event) -> None:
    """Ignores an event."""
    del time_secs, event


class ComputedVersion(NamedTuple):
    """A version of the weights, on the trainer's device.

    Attributes:
      number: the version.
      computed: is done once it is computed.
    """

    number: int
    computed: Future[None]


class SimulatedSite:
    """All that the roles of a simulated run share.

    Draws depend on the seed and on what they are for, not on their order. So all schedules get the
    same completions and times, and their differences are their own.

    Args:
      plan, work: the run's schedule, and its work.
      seed: seed of all draws.
      heard: see `Heard`.

    Attributes:
      queue: virtual time.
      clock: time and threads of all roles.
      master: state of the master.
      buffer: items of the replay buffer, in the order in which they came.
      spans: records of the roles so far.
      fates: what became of each lease so far.
      generated: number of sampled tokens of each explorer, by its name.
      grouped: number of sampled tokens of each whole group, by its lease id.
      pulling: number of versions that travel to explorers.
      links: link of collective transfers to each explorer.
    """

    def __init__(self, plan: SpeedPlan, work: Workload, seed: int, heard: Heard = unheard) -> None:
        self.plan, self.work, self._seed, self._heard = plan, work, seed, heard
        self.queue = EventQueue()
        self.clock = VirtualClock(lambda: self.queue.now_secs, self.queue.after, _raise)
        self._machine = SharedMachine(self.queue, work.shared)
        self._judges = JudgePool(self.queue, work.judges) if work.judges else None
        self.master = MasterState(plan.master)
        self._meeting = Meeting()
        self.buffer: collections.deque[dict[str, np.ndarray]] = collections.deque()
        self.spans: list[Span] = []
        self.fates: dict[int, Fate] = {}
        self.generated: collections.Counter[str] = collections.Counter()
        self.grouped: dict[int, int] = {}
        self.pulling = 0
        explorers = range(1, plan.explorers + 1)
        self.links: dict[int, Any] = {number: TimedLink(self, number) for number in explorers}
        self._changes, self._work_changes = Waiters(), Waiters()
        self.tell(Started(Position(0, 0, (), 0)))

    @property
    def is_over(self) -> bool:
        """True once all steps are finished."""
        return self.master.trained_steps >= self.plan.master.steps

    @property
    def sync_kind(self) -> SpanKind:
        """The kind of the spans of weight transfers."""
        return sync_kind(self.plan.transfer)

    # The master.

    def answer(self, call: Call[Any]) -> Any:
        """Answers a call to the master, in the thread of the caller."""
        match call:
            case AskLease():
                return self._lease(call)
            case AskNewest(at_least):
                self.wait_for(lambda: not call.timeout_secs or self.newest >= at_least)
                return self.newest
            case AwaitGrant():
                return self._awaited(lambda: seen(self._meeting, call))
            case AskWaiting(timeout_secs):
                if timeout_secs:
                    return self._awaited(lambda: seen(self._meeting, call))
                return seen(self._meeting, call) or []
            case AskBuffered():
                return buffered(self.master)
            case AskStatus():
                return RunStatus("rl", 0, 0)
            case TrainerReady():
                return None  # The run has begun already.
        if isinstance(call, MeetingEvent):
            self._meeting, answer = met(self._meeting, call)
            self.changed()
            return answer
        event = event_of(call)
        return None if event is None else self._answered(event)

    def tell(self, event: Event) -> tuple[Command, ...]:
        """Lets the master handle an event; whoever waits for it goes on afterwards."""
        self._heard(self.queue.now_secs, event)
        self.master, commands = transition(self.master, event)
        self._note(commands)
        self.changed()
        if may_free_work(event, commands):
            self.clock.wake_all(self._work_changes)
        return commands

    @property
    def newest(self) -> int:
        """The newest version that is published; -1 for none."""
        return -1 if self.master.newest is None else self.master.newest

    def _note(self, commands: Iterable[Command]) -> None:
        """Notes what becomes of leases."""
        for one in commands:
            if isinstance(one, Record) and (fate := Fate.after(one.event, one.reason)):
                self.fates |= {lease.lease_id: fate for lease in one.leases}

    @property
    def tokens(self) -> TokenAccount:
        """The account of the tokens that explorers have generated for groups so far."""
        in_flight = sum(self.generated.values()) - sum(self.grouped.values())
        lives = [TokenLife(name, 0.0, 0.0, count) for name, count in self.generated.items()]
        lives.append(TokenLife("groups that are not whole", 0.0, 0.0, in_flight=in_flight))
        groups = {lease: GroupTokens(count, 0) for lease, count in self.grouped.items()}
        return account(lives, groups, self.fates, {}, is_over=False)

    def _answered(self, event: Event) -> Any:
        commands = self.tell(event)
        answers = (one for one in commands if not isinstance(one, Record))
        return answer_to(event, self.master, next(answers, None))

    def _lease(self, call: AskLease) -> Any:
        """Answers a request for work; one that waits at the master travels back only."""
        secs, waits = self.work.calls.lease, call.poll_secs > 0
        if not waits:
            self._travel((1 - _OF_ANSWER) * secs)
        while True:
            request = LeaseRequested(
                call.explorer,
                self.queue.now_secs,
                call.unfinished,
                call.room,
                call.version,
                evaluating=call.evaluating,
            )
            answer = self._asked(request)
            if not waits or not isinstance(answer, HoldBack):
                break
            self.clock.wait(self._work_changes)
        if not isinstance(answer, HoldBack):
            self._travel(_OF_ANSWER * secs)
        return answer

    def _asked(self, request: LeaseRequested) -> Any:
        self._heard(self.queue.now_secs, request)
        self.master, commands = transition(self.master, request)
        self._note(commands)
        (answer,) = (one for one in commands if not isinstance(one, Record))
        return answer_to(request, self.master, answer)

    def _travel(self, secs: float) -> None:
        if secs:
            self.clock.sleep(secs)

    # Waiting.

    def changed(self) -> None:
        """Lets threads look again that wait for a change of the master or of the buffer."""
        self.clock.wake_all(self._changes)

    def wait_for(self, is_so: Callable[[], bool], secs: float | None = None) -> None:
        """Lets a thread wait until something is so, or a time is over."""
        self.clock.wait_for(self._changes, is_so, secs)

    def wait_for_change(self) -> None:
        """Lets a thread wait until anything changes."""
        self.clock.wait(self._changes)

    def _awaited(self, look: Callable[[], T]) -> T:
        """Lets a thread wait until there is something; returns it."""
        while not (found := look()):
            self.wait_for_change()
        return found

    # Work.

    def compute(self, is_trainer: bool, secs: float) -> None:
        """Lets a role compute, which takes a time if it is alone on its cores."""
        future = self.clock.future()
        self._machine.work(is_trainer, secs, lambda: future.set_result(None))
        future.result()

    def judge(self, groups: int, *what: object) -> None:
        """Lets a thread wait until groups are judged.

        Args:
          groups: number of groups.
          what: the purpose of the draws.
        """
        if self._judges is None:
            self.clock.sleep(self.draw(self.work.judge, *what))
        else:
            completions = range(groups * len(self.work.lengths[0]))
            secs = [self.draw(self.work.judge_completion, *what, one) for one in completions]
            future = self.clock.future()
            self._judges.judge(secs, lambda: future.set_result(None))
            future.result()
        self._travel(self.work.calls.judge)

    def take(self, count: int) -> list[dict[str, np.ndarray]]:
        """Takes the first items from the buffer, up to so many."""
        taken = [*itertools.islice(self.buffer, count)]
        for _ in taken:
            self.buffer.popleft()
        return taken

    # Draws and records.

    def draw(self, samples: Samples, *what: object) -> float:
        """Draws a value for a purpose."""
        if len(samples.values) == 1:
            return samples.values[0]
        return samples.draw(random_of(self._seed, *what))

    def lengths(self, ordinal: int, attempt: int) -> tuple[int, ...]:
        """Returns the tokens of each completion of a group."""
        return lengths_of(self.work, self._seed, ordinal, attempt)

    def rewards(self, lease_id: int) -> tuple[float, float]:
        """Returns rewards of a group: equal ones if it is dropped, and generated anew.

        Where a step trains on some of the groups, their spread is drawn, too.
        """
        share, settings = self.work.replaced, self.plan.settings
        if share > 0 and random_of(self._seed, "useless", lease_id).random() < share:
            return 0.0, 0.0
        if settings.groups_generated == settings.trainer.groups_per_step:
            return 0.0, 1.0
        return 0.0, 1.0 + random_of(self._seed, "spread", lease_id).random()

    def record(self, span: Span) -> None:
        """Records a span, unless it is an empty wait or a compilation, which takes no time here."""
        if span.duration_secs > 0 or span.kind not in (SpanKind.WAIT, SpanKind.COMPILE):
            self.spans.append(span)


class TimedLink:
    """The link from the trainer to an explorer; see `Link`."""

    def __init__(self, site: SimulatedSite, explorer: int) -> None:
        self._site, self._explorer = site, explorer
        self._sent = site.clock.mailbox()

    def send(self, params: ComputedVersion) -> None:
        """Sends weights."""
        site = self._site
        pull = site.work.transfers[site.plan.transfer].pull
        site.clock.sleep(site.draw(pull, "pull", self._explorer, params.number))
        self._sent.put(params)

    def receive(self) -> ComputedVersion:
        """Receives weights."""
        received: ComputedVersion = self._sent.get()
        return received


class TimedSession(SimulatedSession):
    """The session of a role, whose calls the site answers.

    Args:
      site: the run.
      role: the role.
    """

    def __init__(self, site: SimulatedSite, role: str) -> None:
        spans = VirtualSpans(role, lambda: site.queue.now_secs, site.record)
        super().__init__(site.plan.settings, spans, site.clock)
        self._site = site

    def call_alone(self, call: Call[T]) -> T:
        """See `Session`."""
        answer: T = self._site.answer(call)
        return answer


def random_of(*what: object) -> random.Random:
    """Returns the source of draws for a purpose."""
    return random.Random(" ".join(map(str, what)))


def lengths_of(work: Workload, seed: int, ordinal: int, attempt: int) -> tuple[int, ...]:
    """Draws the tokens of each completion of a group."""
    return random_of(seed, "lengths", ordinal, attempt).choice(work.lengths)


def _raise(error: BaseException) -> None:
    raise error
