"""The place where a simulated run happens: virtual time, the master, and the records."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_sync.messages.events import Command, Event, Position, Record, Started
from rl_sync.records.spans import Span, SpanKind, sync_kind
from rl_sync.role_names import explorer_name
from rl_sync.roles.master.state import MasterState
from rl_sync.roles.master.transition import may_free_work, transition
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.speed.judge_pool import JudgePool
from rl_sync.simulation.speed.shared_machine import SharedMachine
from rl_sync.simulation.speed.speed_plan import SpeedPlan
from rl_sync.simulation.speed.workload import Samples, Workload


class BufferedGroup(NamedTuple):
    """A group in the replay buffer."""

    lease_id: int
    ordinal: int
    version: int
    tokens: int


Heard = Callable[[float, Event], None]
"""A function that is called with each event that the master handles, and its virtual time."""


def unheard(time_secs: float, event: Event) -> None:
    """Ignores an event."""
    del time_secs, event


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
      machine: devices of the roles.
      master: state of the master.
      buffer: groups in the replay buffer, in the order in which they came.
      spans: records of the roles so far.
    """

    def __init__(self, plan: SpeedPlan, work: Workload, seed: int, heard: Heard = unheard) -> None:
        self.plan, self.work, self._seed, self._heard = plan, work, seed, heard
        self.queue = EventQueue()
        self.machine = SharedMachine(self.queue, work.shared)
        self._judges = JudgePool(self.queue, work.judges) if work.judges else None
        self.master = MasterState(plan.master)
        self.buffer: list[BufferedGroup] = []
        self.spans: list[Span] = []
        self._watchers: list[Callable[[], None]] = []
        self._workers: list[Callable[[], None]] = []
        self._tell_later = self._tell_workers = False
        self.tell(Started(Position(0, 0, (), 0)))

    @property
    def now(self) -> float:
        """The virtual time in seconds."""
        return self.queue.now_secs

    @property
    def sync_kind(self) -> SpanKind:
        """The kind of the spans of weight transfers."""
        return sync_kind(self.plan.transfer)

    def ask(self, event: Event) -> Command:
        """Lets the master answer a request."""
        self._heard(self.now, event)
        self.master, commands = transition(self.master, event)
        (answer,) = (one for one in commands if not isinstance(one, Record))
        return answer

    def tell(self, event: Event) -> tuple[Command, ...]:
        """Lets the master handle an event; whoever watches is told afterwards."""
        self._heard(self.now, event)
        self.master, commands = transition(self.master, event)
        self.changed(may_free_work(event, commands))
        return commands

    def watch(self, watcher: Callable[[], None]) -> None:
        """Calls a function after each change of the master's state, or of the buffer."""
        self._watchers.append(watcher)

    def watch_for_work(self, watcher: Callable[[], None]) -> None:
        """Registers a callback for new work, which is called after those of `watch`."""
        self._workers.append(watcher)

    def changed(self, may_free_work: bool = True) -> None:
        """Tells whoever watches, once all that happens at this time is done."""
        self._tell_workers |= may_free_work
        if not self._tell_later:
            self._tell_later = True
            self.queue.after(0.0, self._tell_all)

    def _tell_all(self) -> None:
        workers = self._workers if self._tell_workers else []
        self._tell_later = self._tell_workers = False
        for watcher in (*self._watchers, *workers):
            watcher()

    def draw(self, samples: Samples, *what: object) -> float:
        """Draws a value for a purpose."""
        if len(samples.values) == 1:
            return samples.values[0]
        return samples.draw(self.random(*what))

    def judge(self, groups: int, then: Callable[[], None], *what: object) -> None:
        """Lets groups be judged.

        Args:
          groups: number of groups.
          then: called once all of them are judged.
          what: the purpose of the draws.
        """
        if self._judges is None:
            self.queue.after(self.draw(self.work.judge, *what), then)
            return
        completions = range(groups * len(self.work.lengths[0]))
        self._judges.judge(
            [self.draw(self.work.judge_completion, *what, one) for one in completions], then
        )

    def random(self, *what: object) -> random.Random:
        """Returns the source of draws for a purpose."""
        return random.Random(" ".join(map(str, (self._seed, *what))))

    def lengths(self, ordinal: int, attempt: int) -> tuple[int, ...]:
        """Returns the tokens of each completion of a group."""
        return self.random("lengths", ordinal, attempt).choice(self.work.lengths)

    def record(self, role: str, kind: SpanKind, start_secs: float, **attributes: Any) -> None:
        """Records a span that ends now, unless it is an empty wait."""
        if kind is not SpanKind.WAIT or self.now > start_secs:
            self.spans.append(Span(role, kind, start_secs, self.now, attributes))

    def name(self, explorer: int) -> str:
        """Returns the role name of an explorer."""
        return explorer_name(explorer)
