"""A process of the simulation: it lives, calls others, stalls, dies, and is started again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from rl_sync.records.spans import SpanKind
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.faults.disk import DiskFullError, SimulatedDisk
from rl_sync.simulation.faults.drawn_run import DrawnRun
from rl_sync.simulation.faults.invariants import Invariants
from rl_sync.simulation.faults.network import SimulatedNetwork
from rl_sync.simulation.virtual_clock import LifeEndedError

RETRY_SECS = 1.0
"""Time after which a call without an answer is sent again."""

CALL_SECS = 100.0
"""Time after which a process ends because nobody answers it."""

Answerer = Callable[[Any], None]


class ProcessDiedError(LifeEndedError):
    """The process has died in the middle of what it did."""


class ArrivedCall(NamedTuple):
    """A call as it arrives.

    Attributes:
      client, life: the calling process, and how many times it was started.
      channel: name of the client's thread, which has one call under way at a time.
      number: number of the call in its channel; the same if the call is sent again.
      message: the message.
      poll_secs: time that the answer may take on purpose.
    """

    client: str
    life: int
    channel: str
    number: int
    message: Any
    poll_secs: float


class _Pending(NamedTuple):
    request: ArrivedCall
    target: str
    then: Answerer
    until_secs: float


class Links(Protocol):
    """Links of collective transfers; see `rl_sync.simulation.faults.joint_transfer`."""

    def enter(
        self,
        explorer: str,
        process: SimulatedProcess,
        weights: int | None,
        then: Callable[[int | None], None],
    ) -> None:
        """Enters the link to an explorer."""


class Surroundings(Protocol):
    """Everything around a process; see `rl_sync.simulation.faults.world.World`."""

    run: DrawnRun
    queue: EventQueue
    network: SimulatedNetwork
    disk: SimulatedDisk
    links: Links
    invariants: Invariants
    processes: Mapping[str, SimulatedProcess]

    @property
    def phase(self) -> str | None:
        """Phase of the run, as the launcher knows it; None until the master has answered it."""

    def crashes(self, process: str, commands: int) -> bool:
        """Says whether a process crashes at a command."""

    def kill(self, process: SimulatedProcess, why: str) -> None:
        """Ends a process, which is started again after a while."""

    def stop(self, process: SimulatedProcess) -> None:
        """Ends a process for the launcher, which starts it again itself."""

    def end(self, process: SimulatedProcess) -> None:
        """Notes that a process has nothing more to do."""

    def note(self, process: str, what: Any) -> None:
        """Adds a line to the list of events."""

    def span(self, process: str, kind: SpanKind, start_secs: float, **attributes: Any) -> None:
        """Adds an activity that ends now to the timeline."""

    def buffered(self) -> frozenset[int]:
        """Returns the lease ids of the groups in the buffer."""

    def announced(self) -> int:
        """Returns the newest version that the master knows; -1 if there is none."""


class SimulatedProcess:
    """A process that can die at any command.

    Args:
      world: everything around it.
      name: its name.

    Attributes:
      is_alive: whether it runs.
      is_done: whether it has ended well, and is not started again.
      life: how many times it was started.
      stalled_until_secs: time until which it stands still.
      commands: number of commands that it has executed in all its lives.
    """

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = self.is_done = False
        self.life = self.commands = 0
        self.stalled_until_secs = 0.0
        self._numbers = 0
        self._pending: dict[str, _Pending] = {}

    def start(self) -> None:
        """Starts the process, or starts it again."""
        self.life += 1
        self.is_alive, self.stalled_until_secs = True, 0.0
        self._guarded(self.begin)

    def begin(self) -> None:
        """Does the first things of a life; what was in memory is gone."""
        raise NotImplementedError

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Handles a call of another process."""
        raise NotImplementedError

    def die(self) -> None:
        """Forgets everything that is not on the disk."""
        self.is_alive = False
        self._pending.clear()

    def after(self, secs: float, action: Callable[[], None]) -> None:
        """Does something after a time, if this life lasts until then."""
        life = self.life

        def act() -> None:
            if self.life != life or not self.is_alive:
                return
            if self.stalled_until_secs > self.world.queue.now_secs:
                self.world.queue.at(self.stalled_until_secs, act)
            else:
                self._guarded(action)

        self.world.queue.after(secs, act)

    def command(self, what: Any) -> None:
        """Counts a command, at which the process may crash instead of executing it.

        Raises:
          ProcessDiedError: it has crashed.
        """
        if not self.is_alive:
            raise ProcessDiedError
        self.commands += 1
        self.world.note(self.name, what)
        if self.world.crashes(self.name, self.commands):
            self.world.kill(self, "crashes")
            raise ProcessDiedError

    def give_up(self, why: str) -> NoReturn:
        """Ends the process, because it cannot go on; it is started again.

        Raises:
          ProcessDiedError: always.
        """
        self.world.kill(self, why)
        raise ProcessDiedError

    def call(
        self,
        target: str,
        message: Any,
        then: Answerer,
        channel: str = "main",
        poll_secs: float = 0.0,
    ) -> None:
        """Calls another process, and sends the call again until it is answered."""
        self.world.invariants.waits(self.name, f"an answer of {target}", poll_secs)
        self._numbers += 1
        request = ArrivedCall(self.name, self.life, channel, self._numbers, message, poll_secs)
        until = self.world.queue.now_secs + CALL_SECS
        self._pending[channel] = _Pending(request, target, then, until)
        self._send(self._pending[channel])

    def forget_call(self, channel: str) -> None:
        """Does not wait any longer for the answer to a call."""
        self._pending.pop(channel, None)

    def receive(self, request: ArrivedCall, life: int) -> None:
        """Takes a call that has arrived, if it was sent to this life of the process."""
        if self.is_alive and self.life == life:
            self.after(0.0, functools.partial(self.handle, request, self._answerer(request)))

    def _answerer(self, request: ArrivedCall) -> Answerer:
        world, life = self.world, self.life

        def answer(result: Any) -> None:
            client = world.processes[request.client]

            def arrive() -> None:
                # A connection does not outlive the process at its other end.
                if self.is_alive and self.life == life:
                    client.take_answer(request, result)

            world.network.send(self.name, request.client, arrive)

        return answer

    def take_answer(self, request: ArrivedCall, result: Any) -> None:
        """Takes an answer, unless it was taken before or nobody waits for it."""
        pending = self._pending.get(request.channel)
        if not self.is_alive or pending is None or pending.request is not request:
            return
        del self._pending[request.channel]
        self.after(0.0, functools.partial(pending.then, result))

    def _send(self, pending: _Pending) -> None:
        request, target = pending.request, self.world.processes[pending.target]
        if self._pending.get(request.channel) is not pending:
            return
        if self.world.queue.now_secs > pending.until_secs:
            self.give_up(f"has waited too long for {pending.target}")
        arrive = functools.partial(target.receive, request, target.life)
        self.world.network.send(self.name, target.name, arrive)
        self.after(RETRY_SECS + request.poll_secs, functools.partial(self._send, pending))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ProcessDiedError:
            pass
        except DiskFullError as error:
            self.world.kill(self, str(error))
