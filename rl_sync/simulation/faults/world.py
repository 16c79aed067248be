"""One run of the simulation: all processes, what lies between them, and the faults."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_sync.messages.events import FORMED_ANEW, GroupsRefused
from rl_sync.messages.master_calls import AskBuffered, Buffered
from rl_sync.records.spans import Span, SpanKind
from rl_sync.roles.restart_policy import EndRun, RestartPrograms, RunFacts, decide
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.faults.disk import SimulatedDisk
from rl_sync.simulation.faults.drawn_run import FAULTY_SECS, MASTER, REPLAY, TRAINER, DrawnRun
from rl_sync.simulation.faults.explorer_process import SimulatedExplorer
from rl_sync.simulation.faults.invariants import BrokenRuleError, Invariants, described
from rl_sync.simulation.faults.joint_transfer import SimulatedLinks
from rl_sync.simulation.faults.master_process import (
    ExplorerLost,
    SimulatedMaster,
    TrainerLost,
)
from rl_sync.simulation.faults.network import SimulatedNetwork
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, Links, SimulatedProcess
from rl_sync.simulation.faults.replay_process import SimulatedReplay
from rl_sync.simulation.faults.trainer_disk import MEMORY
from rl_sync.simulation.faults.trainer_process import SimulatedTrainer

PROGRESS_SECS = 250.0
"""Time after the last fault within which the run has to end."""

_MOST_EVENTS = 300_000
_MOST_LOAD_SECS = 4.0
_RESUME_SECS = 2.0
_LAUNCHER = "launcher"


@dataclasses.dataclass(frozen=True)
class Parts:
    """Classes of the processes; tests replace them by broken ones."""

    master: type[SimulatedMaster] = SimulatedMaster
    replay: type[SimulatedReplay] = SimulatedReplay
    trainer: type[SimulatedTrainer] = SimulatedTrainer
    explorer: type[SimulatedExplorer] = SimulatedExplorer


CORRECT = Parts()


class Noted(NamedTuple):
    """A line of the list of events."""

    secs: float
    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.secs:9.3f}  {self.process:<10} {self.what}"


class SimulatedOutcome(NamedTuple):
    """Result of a simulated run.

    Attributes:
      failed: the rule that was broken; None if all held.
      handled: number of events.
      secs: virtual time.
      crashes: number of processes that died.
      noted, spans: lists of events and of activities, if they were asked for.
      weights: last weights of the trainer.
    """

    failed: str | None
    handled: int
    secs: float
    crashes: int
    noted: list[Noted]
    spans: list[Span]
    weights: int


class _Launcher(SimulatedProcess):
    """Starts processes again, as the policy decides, and tells the master of dead explorers.

    It does not die. If the policy ends the run, all processes end, and a user resumes it.
    """

    def begin(self) -> None:
        """Has nothing to do at first."""
        self._earlier: dict[str, list[float]] = collections.defaultdict(list)
        self._dead: list[SimulatedProcess] = []
        self._forms = False

    def notice(self, process: SimulatedProcess, delay_secs: float) -> None:
        """Learns of a death after a delay."""
        self._dead.append(process)
        self.after(delay_secs, self._decide)

    def _decide(self) -> None:
        dead = [
            one
            for one in self._dead
            if not (one.is_alive or (self._forms and self._is_program(one)))
        ]
        self._dead = []
        if not dead:
            return
        names = [one.name for one in dead]
        now = self.world.queue.now_secs
        facts = RunFacts(
            is_elastic=not self.world.run.is_joint,
            phase=self.world.phase,
            restarts=self.world.run.restarts,
            earlier=self._earlier,
            now_secs=now,
        )
        decision = decide(facts, names, killed=names)
        if isinstance(decision, EndRun):
            self.world.note(self.name, f"ends the run: {decision.why}")
            self._earlier.clear()
            for process in self.world.processes.values():
                if process is not self and process.is_alive:
                    self.world.kill(process, "the run ends")
            ended = [*dead, *self._dead]
            self._dead = []
            self.after(_RESUME_SECS, functools.partial(self._resume, ended))
            return
        for restart in decision:
            self._earlier[restart.role].append(now)
            if isinstance(restart, RestartPrograms):
                self._form_anew()
            else:
                self.restart(self.world.processes[restart.role])

    def _resume(self, ended: list[SimulatedProcess]) -> None:
        is_joint = self.world.run.is_joint
        for process in dict.fromkeys(ended):
            if not (is_joint and self._is_program(process)):
                self.restart(process)
        if is_joint and not self._forms:
            self._form_anew()

    def _is_program(self, process: SimulatedProcess) -> bool:
        return process.name not in (MASTER, REPLAY, self.name)

    def _form_anew(self) -> None:
        """Ends the trainer and all explorers, tells the master, and starts them as one cluster."""
        self._forms = True
        programs = [*filter(self._is_program, self.world.processes.values())]
        for process in programs:
            self.world.stop(process)
        trainer, *explorers = programs
        lost = [ExplorerLost(at, one.life) for at, one in enumerate(explorers, 1)]
        self._tell([TrainerLost(trainer.life), *lost], programs)

    def _tell(self, messages: list[Any], programs: list[SimulatedProcess]) -> None:
        """Tells the master of all deaths, one after the other."""
        if messages:
            message, *rest = messages
            self.call(MASTER, message, lambda _: self._tell(rest, programs), "cluster")
        elif self.world.run.is_exact:
            drop = functools.partial(self._drop, programs)
            self.call(MASTER, AskBuffered(), drop, "cluster")
        else:
            self._start(programs)

    def _drop(self, programs: list[SimulatedProcess], buffered: Buffered) -> None:
        """Drops groups in the buffer: each explorer needs work of each version."""
        refused = GroupsRefused(tuple(buffered.lease_ids), FORMED_ANEW)
        self.call(MASTER, refused, lambda _: self._start(programs), "cluster")

    def _start(self, programs: list[SimulatedProcess]) -> None:
        self._forms = False
        for process in programs:
            process.start()

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Nobody calls the launcher."""
        raise AssertionError(f"the launcher does not know {request.message}")

    def restart(self, process: SimulatedProcess) -> None:
        """Starts a process again; of an explorer the master is told first."""
        if process.name.startswith("explorer"):
            number = int(process.name.removeprefix("explorer"))
            lost = ExplorerLost(number, process.life)
            self.call(MASTER, lost, lambda _: process.start(), process.name)
        else:
            process.start()


class World:
    """Everything of one run.

    Args:
      run: the run.
      parts: classes of the processes.
      notes: whether events are listed.
    """

    def __init__(self, run: DrawnRun, parts: Parts = CORRECT, notes: bool = False) -> None:
        self.run, self._notes = run, notes
        self.queue = EventQueue(run.seed)
        self.chance = random.Random(f"faults {run.seed}")
        self.network = SimulatedNetwork(self.queue, self.chance, run.kinds)
        self.disk = SimulatedDisk()
        self.invariants = Invariants(run)
        self.links: Links = SimulatedLinks(self.queue, random.Random(f"links {run.seed}"))
        self.noted: list[Noted] = []
        self.spans: list[Span] = []
        self.master = parts.master(self, MASTER)
        self.replay = parts.replay(self, REPLAY)
        self.trainer = parts.trainer(self, TRAINER)
        self._launcher = _Launcher(self, _LAUNCHER)
        explorers = [
            parts.explorer(self, f"explorer{number}") for number in range(1, run.explorers + 1)
        ]
        every = (self._launcher, self.master, self.replay, self.trainer, *explorers)
        self.processes: Mapping[str, SimulatedProcess] = {one.name: one for one in every}
        self._crashes = collections.defaultdict[str, set[int]](set)
        self._left = {TRAINER, *(one.name for one in explorers)}
        self._heard_secs = random.Random(f"load {run.seed}").uniform(0.0, _MOST_LOAD_SECS)
        self._deaths = 0
        for fault in run.faults:
            if fault.kind == "crash":
                self._crashes[fault.process].add(int(fault.at))

    def simulate(self) -> None:
        """Runs until the trainer and the explorers have left.

        Raises:
          BrokenRuleError: a rule does not hold.
        """
        for process in self.processes.values():
            process.start()
        for fault in self.run.faults:
            if fault.kind != "crash":
                self.queue.at(fault.at, functools.partial(self._strike, *fault))
        self.queue.at(FAULTY_SECS, self._heal)
        while self._left:
            if not self.queue.step() or self.queue.now_secs > FAULTY_SECS + PROGRESS_SECS:
                raise BrokenRuleError(f"nothing goes on any more: {self._described()}")
            if self.queue.handled > _MOST_EVENTS:
                raise BrokenRuleError(f"too much happens without progress: {self._described()}")
        known = self.master.known
        self.invariants.ended(known.state, known.tokens, self.weights)
        self.invariants.accounted(known.fates)

    @property
    def weights(self) -> int:
        """Weights of the trainer after its last step."""
        return self.trainer.weights

    @property
    def phase(self) -> str | None:
        """Phase of the run, as the launcher knows it; None until the master has answered it.

        The others hear the master from the start, so that they die at many commands before that.
        """
        if self.queue.now_secs < self._heard_secs:
            return None
        state = self.master.known.state
        if not state.begun:
            return "sft"
        return "end" if state.trained_steps == self.run.steps else "rl"

    @property
    def deaths(self) -> int:
        """Number of processes that died."""
        return self._deaths

    def crashes(self, process: str, commands: int) -> bool:
        """Says whether a process crashes at a command."""
        return commands in self._crashes[process] and self.queue.now_secs < FAULTY_SECS

    def kill(self, process: SimulatedProcess, why: str) -> None:
        """Ends a process, which is started again after a while."""
        self.note(process.name, f"DIES: {why}")
        self._deaths += 1
        self._end_life(process)
        self._launcher.notice(process, self.chance.uniform(0.5, 2.5))

    def stop(self, process: SimulatedProcess) -> None:
        """Ends a process for the launcher, which starts it again itself."""
        if process.is_alive:
            self.note(process.name, "is ended by the launcher")
        self._end_life(process)

    def _end_life(self, process: SimulatedProcess) -> None:
        process.die()
        process.is_done = False
        if process is not self.master and process is not self.replay:
            self._left.add(process.name)
        if "power" in self.run.kinds and self.queue.now_secs < FAULTY_SECS:
            self.disk.cut_power(process.name, self.chance)

    def end(self, process: SimulatedProcess) -> None:
        """A process has nothing more to do; the trainer still answers."""
        self.note(process.name, "has nothing more to do")
        process.is_done = True
        self._left.discard(process.name)
        if process is not self.trainer:
            process.is_alive = False

    def note(self, process: str, what: Any) -> None:
        """Adds a line to the list of events."""
        if self._notes:
            self.noted.append(Noted(self.queue.now_secs, process, described(what)))

    def span(self, process: str, kind: SpanKind, start_secs: float, **attributes: Any) -> None:
        """Adds an activity that ends now to the timeline."""
        if self._notes:
            self.spans.append(Span(process, kind, start_secs, self.queue.now_secs, attributes))

    def buffered(self) -> frozenset[int]:
        """Returns the lease ids of the groups in the buffer."""
        return self.replay.buffered if self.replay.is_alive else frozenset()

    def announced(self) -> int:
        """Returns the newest version that the master knows; -1 if there is none, or no master."""
        newest = self.master.known.state.newest if self.master.is_alive else None
        return -1 if newest is None else newest

    def _strike(self, kind: str, name: str, at: float, secs: float) -> None:
        del at
        self.note(name, f"{kind.upper()} for {secs:.1f} s")
        if kind == "outage":
            for file in self.disk.names(MEMORY):
                self.disk.delete(file)
            for process in self.processes.values():
                if process.is_alive and process is not self._launcher:
                    self.kill(process, "no power")
        elif kind == "partition":
            self.network.isolate(name, secs)
        elif kind == "stall":
            process = self.processes[name]
            process.stalled_until_secs = self.queue.now_secs + secs
        else:
            self.disk.is_full = True
            self.queue.after(secs, self._free)

    def _free(self) -> None:
        self.disk.is_full = False

    def _heal(self) -> None:
        self.note("world", "all faults have ended")
        self.network.heal()

    def _described(self) -> str:
        state = self.master.known.state
        living = {one.name: one.is_alive for one in self.processes.values() if not one.is_done}
        return (
            f"{state.trained_steps} of {self.run.steps} steps are trained, version {state.newest}"
            f" is the newest, live leases {[*state.live.values()]}, not done: {living}"
        )


def simulate(run: DrawnRun, parts: Parts = CORRECT, notes: bool = False) -> SimulatedOutcome:
    """Simulates a run, and says which rule was broken, if one was."""
    world = World(run, parts, notes)
    failed: str | None = None
    try:
        world.simulate()
    except Exception as error:  # A rule, or a mistake of the roles.
        failed = f"{type(error).__name__}: {error}"
    queue = world.queue
    weights = world.weights if world.trainer.life else 0
    return SimulatedOutcome(
        failed, queue.handled, queue.now_secs, world.deaths, world.noted, world.spans, weights
    )
