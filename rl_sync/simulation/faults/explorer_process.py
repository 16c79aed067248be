"""An explorer in the simulation: the real loop and delivery, with other ends and another actor."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_sync.ending import FAILURES
from rl_sync.messages.events import ExplorersSeen, FailedEpisode, GroupsJudged, LeaseGrant
from rl_sync.messages.weight_calls import AskNewest
from rl_sync.records.spans import sync_kind
from rl_sync.replay.replay_interface import ReplayUnavailableError
from rl_sync.roles.evaluation.pinned_evaluations import MadeEvaluation
from rl_sync.roles.explorer import commands
from rl_sync.roles.explorer.actor import ExplorerState, Newer
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.rollout.stats import Stats
from rl_sync.sampling_masks import no_entries
from rl_sync.simulation.faults.drawn_run import MASTER, REPLAY, TRAINER
from rl_sync.simulation.faults.invariants import SimulatedGroup, content_of, digest_of
from rl_sync.simulation.faults.joint_transfer import VirtualLink
from rl_sync.simulation.faults.processes import RETRY_SECS, Answerer, ArrivedCall
from rl_sync.simulation.faults.relays import BlockReader, FetchBlock
from rl_sync.simulation.faults.replay_process import InsertGroup
from rl_sync.simulation.faults.simulated_groups import group_of, simulated
from rl_sync.simulation.faults.trainer_process import FetchWeights
from rl_sync.simulation.faults.virtual_process import VirtualProcess, VirtualSession
from rl_sync.simulation.faults.weights_store import Offer, applied
from rl_sync.simulation.stand_ins import CountingEngine
from rl_sync.transfers.collective import CollectivePuller
from rl_sync.types import CompletionProgress, Group, Lease, ReplyMark
from rl_sync.weights.deltas.artifact import HeldVersion
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError

HEARTBEAT_SECS = 2.0
_RECEIVE_SECS = 1.0
_TRAINER_SECS = 10.0
"""Time after which a trainer that does not answer counts as gone."""

_PAUSE_SECS = 0.5
_EVALUATION_GOES_ON = 0.5
_OF_WHICH_ONE_FAILS = 9
_SHARE_OF_FAILURES, _SHARE_OF_WHIMS = 0.3, 0.5
"""Chances of an episode: to begin again after a token, and to go on otherwise elsewhere."""
"""Of so many groups the environment of one fails, in runs that screen groups."""


class NotedExplorerLoop(ExplorerLoop):
    """Lists its commands, at each of which the process may crash, and checks what it is granted."""

    def _execute(self, command: commands.ExplorerCommand) -> commands.ExplorerEvent:
        process = self.explorer.process  # type: ignore[attr-defined]
        process.command(command)
        event = super()._execute(command)
        if isinstance(event, commands.WorkAnswered) and isinstance(event.answer, LeaseGrant):
            leases = event.answer.leases
            process.world.invariants.granted(process.name, process.life, leases)
        return event


class SimulatedExplorer(VirtualProcess):
    """Generates groups."""

    loop: type[ExplorerLoop] = NotedExplorerLoop

    def begin(self) -> None:
        """Starts the loop."""
        run = self.world.run
        self.number = int(self.name.removeprefix("explorer"))
        self.chance = random.Random(f"{run.seed} {self.name} {self.life}")
        self.weights: int | None = None
        self.held: HeldVersion | None = None
        self.blocks = BlockReader(self)
        self._beat()
        super().begin()

    def run(self) -> None:
        """Runs the loop to its end."""
        if self.world.run.fanout:
            self.blocks.join()
        self.clock.sleep(self.chance.uniform(0.1, 1.0))
        self._loop().run()
        self.command(commands.LeaveRun())
        self.world.end(self)

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Hands on blocks of weights."""
        self.command(request.message)
        assert isinstance(request.message, FetchBlock), request.message
        self.blocks.hand_on(request, answer)

    def receive_offer(self, offer: Offer) -> tuple[int, int] | None:
        """Returns the version and the weights of an offer; None if they arrived damaged."""
        damaged = self.world.network.damages()
        return self.accept(offer, None if damaged else applied(self.weights, offer))

    def accept(self, offer: Offer, weights: int | None) -> tuple[int, int] | None:
        """Takes weights if their digest is the right one; else a full copy is asked for."""
        if weights is None:
            self.held = None
            return None
        self.held, self.weights = offer.target, weights
        self.blocks.keep(offer)
        return offer.target.version, weights

    def _beat(self) -> None:
        self.call(MASTER, ExplorersSeen({self.number: 0.0}), lambda _: None, "heartbeat")
        self.after(HEARTBEAT_SECS, self._beat)

    def _loop(self) -> ExplorerLoop:
        session, run = VirtualSession(self), self.world.run
        actor: Any = _GeneratingActor(self)
        puller: Any = _Puller(self, session)
        replay: Any = _FilledReplay(self)
        task: Any = None
        return self.loop(
            session=session,
            number=self.number,
            explorer=actor,
            blank=lambda: None,
            puller=puller,
            began_secs=lambda: 0.0,
            at_hand=lambda: None,
            sync_kind=sync_kind(run.transfer),
            delivery=_SlowDelivery(
                session, task, actor, replay, "groups", beside=True, pause_secs=_PAUSE_SECS
            ),
            evaluations=actor.evaluations,
        )


class _InFlight(NamedTuple):
    """A group that is being generated.

    Attributes:
      oldest_version: version at its begin.
      content: content of the group.
      parts: number of parts of a rollout until it is whole.
      turns: number of the turn that each token so far answers, which is added to the content; 0 for
        completions.
      attempt: number of the attempt to play it, which is the thousands of a turn.
      whims: number of times that its environment has played otherwise.
    """

    lease: Lease
    oldest_version: int
    content: int
    parts: int
    turns: tuple[int, ...] = ()
    attempt: int = 0
    whims: int = 0

    def decoded(self) -> _InFlight:
        """Adds a token."""
        return self._replace(turns=(*self.turns, 1000 * self.attempt + self.whims))

    def progress(self, plays: bool) -> CompletionProgress:
        """Returns its only completion or episode so far; each token of an episode is a reply."""
        content = np.array([self.content + turn for turn in self.turns])
        versions = np.full(len(content), self.oldest_version)
        replies = [
            ReplyMark(i, str(turn).encode(), None, "stop") for i, turn in enumerate(self.turns)
        ]
        return CompletionProgress(
            content,
            np.zeros(len(content)),
            versions,
            no_entries(),
            replies=tuple(replies) if plays else (),
            attempt=self.attempt,
        )


class _GeneratingActor:
    """The explorer's actor; see `Explorer`."""

    def __init__(self, process: SimulatedExplorer) -> None:
        run = process.world.run
        self.process, self.groups = process, run.groups
        self.in_parts = self.streams = run.style == "stream"
        self.engine = CountingEngine()
        self.evaluations = _SlowEvaluations(process)

    def compile(self, params: None) -> None:
        """Compiles nothing."""

    def room(self, state: ExplorerState) -> int:
        return self.groups - len(state.unfinished)

    def rollout(
        self,
        state: ExplorerState,
        leases: Sequence[Lease],
        newer: Newer | None,
        beside: Callable[[], None],
    ) -> tuple[ExplorerState, list[Group]]:
        """Generates a part of each group; between its chunks newer weights may be taken."""
        process = self.process
        chance, invariants = process.chance, process.world.invariants
        weights: Any = state.params
        flying: list[Any] = [*state.unfinished, *(self._begun(lease, state) for lease in leases)]
        invariants.generates(process.name, len(flying))
        for left in range(2 if newer else 0, -1, -1):
            invariants.decodes(process.name, state.version, weights)
            process.clock.sleep(chance.uniform(0.1, 0.8))
            self.engine.stats += Stats(steps=1, stretch_tokens=1)
            flying = [self._played(one).decoded() for one in flying]
            now = state._replace(unfinished=tuple(flying))
            beside()
            if left and newer and (found := newer(now)) is not None:
                state = state._replace(version=found.version, params=found.params)
                weights = state.params
        flying = [one._replace(parts=one.parts - 1) for one in flying]
        whole = [self._group(one) for one in flying if one.parts <= 0]
        invariants.generated(whole)
        return state._replace(unfinished=tuple(one for one in flying if one.parts > 0)), whole

    def _begun(self, lease: Lease, state: ExplorerState) -> _InFlight:
        """Begins a group, or goes on with one."""
        run, chance = self.process.world.run, self.process.chance
        invariants, weights = self.process.world.invariants, state.params
        parts = 1 if run.style == "whole" else chance.randint(1, 3)
        content = content_of(run, lease.ordinal, lease.attempt, weights)
        made = _InFlight(lease, state.version, content, parts)
        for _, progress in lease.begun:
            turns = [int(mark.turn) for mark in progress.replies] or [0] * len(progress.tokens)
            version, content = int(progress.versions[0]), int(progress.tokens[0]) - turns[0]
            invariants.answers(lease, progress, content)
            whims, kept = turns[-1] % 1000, len(turns)
            if run.plays and chance.random() < _SHARE_OF_WHIMS:
                whims, kept = whims + 1, chance.randint(0, kept)
            made = made._replace(
                oldest_version=version,
                content=content,
                turns=tuple(turns[:kept]),
                attempt=progress.attempt,
                whims=whims,
            )
        invariants.begins(lease, made.oldest_version, made.content, is_new=not lease.begun)
        return made

    def _played(self, one: _InFlight) -> _InFlight:
        """Lets an episode begin again, now and then."""
        if not self.process.world.run.plays or self.process.chance.random() > _SHARE_OF_FAILURES:
            return one
        return one._replace(turns=(), attempt=one.attempt + 1, whims=0)

    def progress(self, groups: Sequence[Any]) -> list[dict[int, CompletionProgress]]:
        """See `Explorer`."""
        plays = self.process.world.run.plays
        return [{0: one.progress(plays)} if one.turns else {} for one in groups]

    def _group(self, one: _InFlight) -> Group:
        lease, number = one.lease, self.process.number
        return group_of(
            SimulatedGroup(lease.lease_id, lease.ordinal, number, one.oldest_version, one.content)
        )


class _SlowEvaluations:
    """Evaluations beside rollouts; see `EvaluationsBeside`."""

    lost_secs = 0.0

    def __init__(self, process: SimulatedExplorer) -> None:
        self._process = process
        self._versions: list[int] = []

    @property
    def left(self) -> int:
        return len(self._versions)

    def compile(self, params: None) -> None:
        """Compiles nothing."""

    def begin(self, version: int, params: Any) -> None:
        self._versions.append(version)

    def step(self, *, delays: bool) -> MadeEvaluation | None:
        process = self._process
        if not self._versions:
            return None
        process.clock.sleep(process.chance.uniform(0.1, 0.5))
        if process.chance.random() < _EVALUATION_GOES_ON:
            return None
        return MadeEvaluation(self._versions.pop(0), [], process.clock.now(), 0.0, 0.0)

    def close(self) -> None:
        self._versions.clear()


class _SlowDelivery(GroupDelivery):
    """Delivers groups; to judge them takes a while."""

    def _judge(self, groups: list[Group]) -> list[Group]:
        process = self._explorer.process  # type: ignore[attr-defined]
        process.clock.sleep(process.chance.uniform(0.0, 0.5))
        if not process.world.run.screens:
            return groups
        rewards = tuple((group.lease_id, tuple(group.rewards.tolist())) for group in groups)
        failed = tuple(
            FailedEpisode(group.lease_id, 0, 0, 0, FAILURES[1], "no board", is_lost=True)
            for group in groups
            if simulated(group).content % _OF_WHICH_ONE_FAILS == 0
        )
        admit = process.ask(MASTER, GroupsJudged(rewards, failed))
        return [group for group in groups if group.lease_id in admit.lease_ids]


class _Puller:
    """The explorer's end of a transfer; see `Puller`."""

    def __init__(self, process: SimulatedExplorer, session: VirtualSession) -> None:
        self._process, self._session = process, session
        self._run, self._disk = process.world.run, process.world.disk
        link: Any = VirtualLink(process, process.name)
        self._joint = CollectivePuller(session, link, process.number, check_digest=False)

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        if self._run.transfer != "checkpoint":
            return self._session.call(AskNewest(at_least, timeout_secs))
        clock = self._process.clock
        until = clock.now() + timeout_secs
        while (found := max(self._files(), default=-1)) < at_least and clock.now() < until:
            clock.sleep(0.2)
        return found

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, int]:
        if self._run.is_joint:
            found: Any = self._joint.pull(
                exactly=exactly, at_least=at_least, timeout_secs=timeout_secs
            )
            self._process.weights = found[1]
            return found[0], found[1]
        version = exactly if at_least is None else at_least
        assert version is not None
        read = self._read if self._run.transfer == "checkpoint" else self._fetched
        offer = read(version, at_least is None)
        if offer is None:
            self._process.clock.sleep(_RECEIVE_SECS)
            raise WeightsTimeoutError(f"there is no version {version}")
        received = self._process.receive_offer(offer)
        if received is None:
            raise WeightsTransferError(f"version {offer.target.version} arrived damaged")
        return received

    def _fetched(self, version: int, exactly: bool) -> Offer | None:
        """Fetches a version from the trainer, or its blocks from other explorers."""
        process = self._process
        process.command("fetch weights")
        message = FetchWeights(version, exactly, process.held)
        try:
            offer: Offer | None = process.ask(TRAINER, message, secs=_TRAINER_SECS)
            if offer is None or not self._run.fanout:
                return offer
            fetched: Offer | None = process.blocking(
                lambda then: process.blocks.fetch(offer, then), _TRAINER_SECS
            )
        except TimeoutError as error:
            raise WeightsTransferError("the trainer does not answer") from error
        return fetched

    def _files(self) -> dict[int, int]:
        """Returns the weights of the versions that are whole on the disk."""
        found = {name: self._disk.read(name) for name in self._disk.names("weights-")}
        return {int(name.split("-")[1]): one[0] for name, one in found.items() if one}

    def _read(self, version: int, exactly: bool) -> Offer | None:
        self._process.clock.sleep(self._process.chance.uniform(0.05, 0.5))
        files = self._files()
        fitting = [one for one in files if one == version or (one > version and not exactly)]
        if not fitting:
            return None
        weights = files[max(fitting)]
        return Offer(HeldVersion("files", max(fitting), digest_of(weights)), (), weights)


class _FilledReplay:
    """The explorer's client of the replay server; see `ReplayClient`."""

    may_restart = True

    def __init__(self, process: SimulatedExplorer) -> None:
        self._process, self.breaks = process, 0

    def insert_many(
        self,
        table: str,
        items: Sequence[dict[str, np.ndarray]],
        *,
        priorities: Sequence[float],
        timeout_secs: float,
    ) -> None:
        del table, priorities
        for columns in items:
            group = simulated(Group.from_columns(columns))
            self._process.command(f"insert {group.lease_id}")
            try:
                secs = timeout_secs + 2 * RETRY_SECS
                self._process.ask(REPLAY, InsertGroup(group), timeout_secs, secs)
            except TimeoutError as error:
                self.breaks += 1
                raise ReplayUnavailableError("the replay server does not answer") from error
