"""An explorer in the simulation: executes the commands of the explorer's life."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import NamedTuple

from rl_sync.messages.events import ExplorersSeen, GroupsBuffered, LeaseGrant
from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.roles.explorer import commands, life
from rl_sync.roles.explorer.life import Commands, ExplorerLife, ExplorerPlan
from rl_sync.simulation.faults.drawn_run import MASTER, REPLAY, TRAINER
from rl_sync.simulation.faults.invariants import SimulatedGroup, content_of, digest_of
from rl_sync.simulation.faults.joint_transfer import TakingSide
from rl_sync.simulation.faults.master_process import AskVersion
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess
from rl_sync.simulation.faults.relays import BlockReader, FetchBlock
from rl_sync.simulation.faults.replay_process import InsertGroup
from rl_sync.simulation.faults.trainer_process import FetchWeights
from rl_sync.simulation.faults.weights_store import Offer, applied
from rl_sync.types import Lease
from rl_sync.weights.deltas.artifact import HeldVersion

HEARTBEAT_SECS = 2.0
WAIT_SECS = 300.0
_RECEIVE_SECS = 1.0


class _InFlight(NamedTuple):
    """A group that is being generated.

    Attributes:
      oldest_version, weights: version and weights at its begin.
      parts: number of parts of a rollout until it is whole.
    """

    lease: Lease
    oldest_version: int
    weights: int
    parts: int


class SimulatedExplorer(SimulatedProcess):
    """Generates groups."""

    def begin(self) -> None:
        """Begins without weights and groups."""
        run = self.world.run
        self._number = int(self.name.removeprefix("explorer"))
        self._chance = random.Random(f"{run.seed} {self.name} {self.life}")
        self._commands = self.begin_life(
            ExplorerPlan(
                groups=run.groups,
                in_parts=run.style == "stream",
                streams=run.style == "stream",
                swaps=run.swaps,
                is_elastic=not run.is_joint,
            )
        )
        self._version: int | None = None
        self._weights: int | None = None
        self._held: HeldVersion | None = None
        self._in_flight: list[_InFlight] = []
        self._whole: list[SimulatedGroup] = []
        self._deliveries: list[SimulatedGroup] = []
        self._is_delivering = False
        self._deadline: float | None = None
        self._swaps_left = 0
        self._since = self._now
        self._sync_kind = sync_kind(run.transfer)
        links = self.world.links
        self._meeting = TakingSide(
            self, self._number, links, self._take, self._late, lambda: self.world.end(self)
        )
        self._blocks = BlockReader(self)
        self._wanted: commands.Pull | None = None
        self._beat()
        if run.fanout:
            self._blocks.join()
        self.after(self._chance.uniform(0.1, 1.0), self._proceed)

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Hands on blocks of weights."""
        self.command(request.message)
        assert isinstance(request.message, FetchBlock), request.message
        self._blocks.hand_on(request, answer)

    def begin_life(self, plan: ExplorerPlan) -> Commands[None]:
        """Begins what an explorer does."""
        return ExplorerLife(plan).commands()

    @property
    def _now(self) -> float:
        return self.world.queue.now_secs

    def _beat(self) -> None:
        self.call(MASTER, ExplorersSeen({self._number: 0.0}), lambda _: None, "heartbeat")
        self.after(HEARTBEAT_SECS, self._beat)

    def _proceed(self, event: commands.ExplorerEvent = None) -> None:
        """Sends an event, and executes the commands that follow, up to one that takes time."""
        is_done = True
        while is_done:
            command = self._commands.send(event)
            self.command(command)
            is_done, event = self._execute(command), None

    def _execute(self, command: commands.ExplorerCommand) -> bool:
        """Executes a command; returns False if the next one follows later, or none."""
        match command:
            case commands.Pause(secs):
                self.after(secs, self._proceed)
                return False
            case commands.StartDeadline() | commands.RenewDeadline():
                self._deadline = self._now + WAIT_SECS
            case commands.CheckDeadline():
                if self._deadline is None or self._now > self._deadline:
                    self.give_up("has waited too long")
            case commands.Look(newest_after_secs):
                asks = newest_after_secs is not None and self._now >= newest_after_secs
                newest = self._newest_at_hand() if asks else None
                self._end_after(0.0, lambda: commands.Looked(self._now, None, newest))
                return False
            case commands.Ask():
                self.world.invariants.waits(self.name, "work", command.poll_secs)
                self.call(MASTER, command, self._take_answer, poll_secs=command.poll_secs)
                return False
            case commands.AwaitVersion(version, poll_secs):
                self.world.invariants.waits(self.name, f"version {version}", poll_secs)
                self._await(version, self._now + poll_secs, poll_secs)
                return False
            case commands.BeginWait(reason):
                self._since, self._reason = self._now, reason
            case commands.EndWait():
                wait = {"reason": self._reason, "for_whom": life.TRAINER}
                self.world.span(self.name, SpanKind.WAIT, self._since, **wait)
            case commands.BeginRollout(step):
                self._since, self._step, self._leases = self._now, step, list[int]()
            case commands.EndRollout():
                self.world.span(
                    self.name,
                    SpanKind.ROLLOUT,
                    self._since,
                    step=self._step,
                    version=self._version,
                    leases=self._leases,
                )
            case commands.Pull():
                self._since = self._now
                self._pull(command)
                return False
            case commands.RollOut():
                self._roll_out(command)
                return False
            case commands.GoOn():
                self._roll_on()
                return False
            case commands.Deliver():
                self._deliveries += self._whole
                self._deliver()
            case commands.Evaluate():
                self._in_flight = [one._replace(parts=1) for one in self._in_flight]
                done = commands.RolledOut(0, len(self._in_flight), self._room())
                self._end_after(self._chance.uniform(0.1, 1.0), lambda: done)
                return False
            case commands.GiveUp(why):
                self.give_up(why)
            case commands.LeaveRun():
                self.world.end(self)
                return False
        return True

    def _end_after(self, secs: float, event: Callable[[], commands.ExplorerEvent]) -> None:
        """Ends a command after a time, with the event of that time."""
        self.after(secs, lambda: self._proceed(event()))

    # Weights.

    def _newest_at_hand(self) -> int:
        """Returns the newest version that can be pulled now."""
        if self.world.run.transfer == "checkpoint":
            names = [n for n in self.world.disk.names("weights-") if self.world.disk.read(n)]
            return max((int(name.split("-")[1]) for name in names), default=-1)
        return self.world.announced()

    def _await(self, version: int, until: float, poll_secs: float) -> None:
        if self.world.run.transfer != "checkpoint":
            self.call(
                MASTER,
                AskVersion(version),
                self._proceed,
                poll_secs=poll_secs,
            )
            return
        newest = self._newest_at_hand()
        if newest >= version or self._now >= until:
            self.after(0.0, lambda: self._proceed(newest))
        else:
            self.after(0.2, functools.partial(self._await, version, until, poll_secs))

    def _pull(self, command: commands.Pull) -> None:
        self._wanted = command
        if self.world.run.is_joint:
            self._meeting.pull(command.version, command.exactly)
            return
        if self.world.run.transfer == "checkpoint":
            self.after(self._chance.uniform(0.05, 0.5), functools.partial(self._read, command))
            return
        message = FetchWeights(command.version, command.exactly, self._held)
        receive = functools.partial(self._receive, command)
        self.call(TRAINER, message, self._relayed if self.world.run.fanout else receive)

    def _relayed(self, offer: Offer | None) -> None:
        """Fetches the payloads of an offer from other explorers."""
        if offer is None:
            self._late()
        else:
            self._blocks.fetch(offer, functools.partial(self._receive, self._pulling))

    def _read(self, command: commands.Pull) -> None:
        """Reads a version that is whole from the disk."""
        disk = self.world.disk
        found = {int(n.split("-")[1]): disk.read(n) for n in disk.names("weights-")}
        fitting = [
            version
            for version, records in found.items()
            if records
            and (version == command.version or (version > command.version and not command.exactly))
        ]
        if not fitting:
            self._late()
            return
        weights = found[max(fitting)][0]
        target = HeldVersion("files", max(fitting), digest_of(weights))
        self._receive(command, Offer(target, (), weights))

    def _receive(self, command: commands.Pull, offer: Offer | None) -> None:
        if offer is None:
            self._late()
            return
        damaged = self.world.network.damages()
        self.accept(command, offer, None if damaged else applied(self._weights, offer))

    def accept(self, command: commands.Pull, offer: Offer, weights: int | None) -> None:
        """Takes weights if their digest is the right one, or asks for a full copy."""
        if weights is None:
            self._held = None
            self._late()
            return
        self._held = offer.target
        self._blocks.keep(offer)
        self._take(offer.target.version, weights)

    def _take(self, version: int, weights: int) -> None:
        command, self._weights = self._pulling, weights
        self._version = version
        self.world.span(self.name, self._sync_kind, self._since, version=version, step=command.step)
        self._proceed(version)

    @property
    def _pulling(self) -> commands.Pull:
        assert self._wanted is not None
        return self._wanted

    def _late(self) -> None:
        since = self._since if self._pulling.since_secs is None else self._pulling.since_secs
        self._end_after(_RECEIVE_SECS, lambda: commands.NotPulled(since))

    # Groups.

    def _take_answer(self, answer: commands.Answer) -> None:
        if isinstance(answer, LeaseGrant):
            self.world.invariants.granted(self.name, self.life, answer.leases)
        self._proceed(commands.WorkAnswered(answer, self._now))

    def _room(self) -> int | None:
        run = self.world.run
        return run.groups - len(self._in_flight) if run.style == "stream" else None

    def _roll_out(self, command: commands.RollOut) -> None:
        version, weights = self._version, self._weights
        self.world.invariants.decodes(self.name, version, weights)
        assert version is not None
        assert weights is not None
        whole_only = self.world.run.style == "whole"
        self._in_flight += [
            _InFlight(lease, version, weights, 1 if whole_only else self._chance.randint(1, 3))
            for lease in command.leases
        ]
        self.world.invariants.generates(self.name, len(self._in_flight))
        self._leases += [lease.lease_id for lease in command.leases]
        self._swaps_left = 2 if command.may_swap else 0
        self._roll_on()

    def _roll_on(self) -> None:
        """Generates a chunk; between two chunks newer weights may be taken."""
        self.world.invariants.decodes(self.name, self._version, self._weights)
        secs = self._chance.uniform(0.1, 0.8)
        if self._swaps_left:
            self._swaps_left -= 1
            self._end_after(secs, commands.SwapPossible)
        else:
            self.after(secs, self._end_part)

    def _end_part(self) -> None:
        self._in_flight = [one._replace(parts=one.parts - 1) for one in self._in_flight]
        self._collect()
        self._proceed(commands.RolledOut(len(self._whole), len(self._in_flight), self._room()))

    def _collect(self) -> None:
        """Makes groups of those that have no parts left."""
        run = self.world.run
        self._whole = [
            SimulatedGroup(
                one.lease.lease_id,
                one.lease.ordinal,
                self._number,
                one.oldest_version,
                content_of(run, one.lease.ordinal, one.lease.attempt, one.weights),
            )
            for one in self._in_flight
            if one.parts <= 0
        ]
        self._in_flight = [one for one in self._in_flight if one.parts > 0]

    def _deliver(self) -> None:
        """Inserts one group after the other, and reports each, beside the generation."""
        if self._is_delivering or not self._deliveries:
            return
        self._is_delivering, began = True, self._now
        group = self._deliveries.pop(0)

        def inserted(_: object) -> None:
            self.command("report the group")
            self.world.span(self.name, SpanKind.INSERT, began, leases=[group.lease_id])
            event = GroupsBuffered((group.lease_id,))
            self.call(MASTER, event, reported, "delivery")

        def reported(_: object) -> None:
            self._is_delivering = False
            self._deliver()

        def insert() -> None:
            self.call(REPLAY, InsertGroup(group), inserted, "delivery")

        self.after(self._chance.uniform(0.0, 0.5), insert)
