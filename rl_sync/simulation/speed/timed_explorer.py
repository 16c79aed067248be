"""An explorer of a simulated run: the real loop and delivery, over an actor that takes its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_sync.messages.events import Admit, GroupsJudged
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import explorer_name
from rl_sync.roles.assembly import wiring
from rl_sync.roles.evaluation.pinned_evaluations import MadeEvaluation
from rl_sync.roles.explorer.actor import ExplorerState, Newer
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.rollout.stats import Stats
from rl_sync.simulation.speed.simulated_site import SimulatedSite, TimedSession
from rl_sync.simulation.speed.simulated_slots import SimulatedSlots
from rl_sync.simulation.speed.timed_weights import puller_of
from rl_sync.simulation.stand_ins import CountingEngine
from rl_sync.types import CompletionProgress, Group, Lease

_EVALUATION_PARTS = 16
"""Number of chunks that an evaluation takes."""


def explorer_of(site: SimulatedSite, number: int) -> Callable[[], None]:
    """Returns an explorer as a function that runs it to its end."""

    def run() -> None:
        session = TimedSession(site, explorer_name(number))
        actor: Any = _DecodingActor(site, number)
        replay: Any = _Inserter(site)
        task: Any = None
        delivery = _TimedDelivery(
            session,
            task,
            actor,
            replay,
            "groups",
            wiring.delivers_beside(session.settings),
            pause_secs=math.inf,
        )
        delivery.site = site
        puller = puller_of(site, session, number)
        loop_puller: Any = puller
        _TimedLoop(
            session=session,
            number=number,
            explorer=actor,
            blank=lambda: None,
            puller=loop_puller,
            began_secs=puller.began_secs,
            at_hand=puller.at_hand,
            sync_kind=site.sync_kind,
            delivery=delivery,
            evaluations=actor.evaluations,
        ).run()

    return run


class _TimedLoop(ExplorerLoop):
    """Says when a rollout begins."""

    def _begin(self, step: int) -> None:
        self.explorer.begin()  # type: ignore[attr-defined]
        super()._begin(step)


class _BegunGroup(NamedTuple):
    """A group that is being generated."""

    lease: Lease
    oldest_version: int


class _DecodingActor:
    """The explorer's actor; see `Explorer`."""

    def __init__(self, site: SimulatedSite, number: int) -> None:
        plan = site.plan
        self._site, self._number = site, number
        self.groups, self.in_parts = plan.master.groups_per_lease, plan.in_parts
        self.streams = plan.settings.rollout.streaming
        self._slots = SimulatedSlots(plan.settings.slots)
        self._rollouts, self._factor, self._waiting_secs = 0, 1.0, 0.0
        self.evaluations = _TimedEvaluations(site)
        self.engine = CountingEngine()

    def compile(self, params: None) -> None:
        """Compiles nothing."""

    def begin(self) -> None:
        """Draws the noise of the next rollout, and how long it waits for environments."""
        self._rollouts += 1
        work, which = self._site.work, (self._number, self._rollouts)
        self._factor = self._site.draw(work.decoding.noise, "rollout", *which)
        if not self.streams:  # Else other episodes are decoded meanwhile.
            self._waiting_secs = self._site.draw(work.waiting, "waiting", *which)

    def room(self, state: ExplorerState) -> int:
        """See `Explorer`."""
        if not self.streams:
            return self.groups - len(state.unfinished)
        rows = len(self._site.work.lengths[0])
        return max(0, (self._slots.slots - self._slots.occupied) // rows + 1)

    def rollout(
        self,
        state: ExplorerState,
        leases: Sequence[Lease],
        newer: Newer | None,
        beside: Callable[[], None],
    ) -> tuple[ExplorerState, list[Group]]:
        """See `Explorer`."""
        flying: dict[int, Any] = {one.lease.lease_id: one for one in state.unfinished}
        for lease in leases:
            self._slots.add(lease.lease_id, self._site.lengths(lease.ordinal, lease.attempt))
            flying[lease.lease_id] = _BegunGroup(lease, state.version)
        rollout = self._site.plan.settings.rollout
        budget = 1 if self.in_parts else rollout.budget_tokens or math.inf
        self._wait()
        whole, tokens, begun = list[int](), 0, len(leases)
        while self._slots.occupied and tokens < budget:
            in_chunks = self.in_parts or newer or self.evaluations.left
            steps = rollout.chunk_tokens if in_chunks else math.inf
            most = math.inf if self.in_parts else budget - tokens
            tokens += self._decode(steps, most, begun, whole)
            begun = 0
            beside()
            if newer and self._slots.occupied and (found := newer(state)) is not None:
                state = state._replace(version=found.version, params=found.params)
        groups = [self._group(flying.pop(lease_id)) for lease_id in whole]
        return state._replace(unfinished=tuple(flying.values())), groups

    def _wait(self) -> None:
        """Spends the time that the rollout waits for environments, once."""
        secs, self._waiting_secs = self._waiting_secs, 0.0
        if secs:
            self._site.clock.sleep(secs)
            self.engine.stats += Stats(waiting_secs=secs)

    def progress(self, groups: Sequence[Any]) -> list[dict[int, CompletionProgress]]:
        """Has no tokens, so that nothing is told: nobody dies."""
        return [{} for _ in groups]

    def _decode(self, steps: float, most: float, begun: int, whole: list[int]) -> int:
        """Decodes some steps, after the prefills of begun groups; returns the sampled tokens."""
        decoding = self._site.work.decoding
        decoded = self._slots.advance(steps, most)
        prefill_secs = decoding.prefill_secs * begun
        secs = prefill_secs + decoding.secs(decoded.steps, decoded.row_steps)
        self._site.compute(False, secs * self._factor)
        whole += decoded.whole
        self._site.generated[explorer_name(self._number)] += decoded.row_steps
        self.engine.stats += Stats(
            decode_tokens=decoded.row_steps,
            steps=decoded.steps,
            row_steps=decoded.row_steps,
            prefill_secs=prefill_secs,
        )
        return decoded.row_steps

    def _group(self, one: _BegunGroup) -> Group:
        lease = one.lease
        tokens = sum(self._site.lengths(lease.ordinal, lease.attempt))
        self._site.grouped[lease.lease_id] = tokens
        shape = (1, tokens)
        return Group(
            lease_id=lease.lease_id,
            ordinal=lease.ordinal,
            prompt_id=0,
            explorer=self._number,
            tokens=np.broadcast_to(np.int32(0), shape),
            completion_mask=np.broadcast_to(np.True_, shape),
            behavior_logprobs=np.broadcast_to(np.float32(0), shape),
            policy_versions=np.broadcast_to(np.int32(one.oldest_version), shape),
            rewards=np.asarray(self._site.rewards(lease.lease_id), np.float32),
        )


class _TimedEvaluations:
    """Evaluations beside rollouts; see `EvaluationsBeside`."""

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site
        self._begun: list[tuple[int, float]] = []
        self._parts, self.lost_secs = 0, 0.0

    @property
    def left(self) -> int:
        """See `EvaluationsBeside`."""
        return len(self._begun)

    def compile(self, params: None) -> None:
        """Compiles nothing."""

    def begin(self, version: int, params: None) -> None:
        """See `EvaluationsBeside`."""
        self._begun.append((version, self._site.queue.now_secs))

    def step(self, *, delays: bool) -> MadeEvaluation | None:
        """Takes a part of the time that an evaluation takes."""
        if not self._begun:
            return None
        version, began_secs = self._begun[0]
        secs = self._site.draw(self._site.work.evaluate, "evaluate", version)
        now_secs = self._site.queue.now_secs
        self._site.compute(False, secs / _EVALUATION_PARTS)
        spent = self._site.queue.now_secs - now_secs
        self._parts += 1
        self.lost_secs += spent if delays else 0.0
        if self._parts < _EVALUATION_PARTS:
            return None
        self._parts = 0
        del self._begun[0]
        return MadeEvaluation(version, [], began_secs, secs, 0.0)

    def close(self) -> None:
        """Does nothing."""


class _TimedDelivery(GroupDelivery):
    """Delivers groups; the judges take their time."""

    site: SimulatedSite
    _made = 0

    def _judge(self, groups: list[Group]) -> list[Group]:
        self._made += 1
        leases = [group.lease_id for group in groups]
        with self._session.spans.span(SpanKind.SCORE, leases=leases):
            self.site.judge(len(groups), "judge", self._session.role, self._made)
            rewards = tuple((one.lease_id, tuple(one.rewards.tolist())) for one in groups)
            commands = self.site.tell(GroupsJudged(rewards))
            (admit,) = (one for one in commands if isinstance(one, Admit))
        return [group for group in groups if group.lease_id in admit.lease_ids]


class _Inserter:
    """The explorer's client of the replay buffer; see `ReplayClient`."""

    may_restart, breaks = False, 0

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site

    def insert_many(
        self,
        table: str,
        items: Sequence[dict[str, np.ndarray]],
        *,
        priorities: Sequence[float],
        timeout_secs: float,
    ) -> None:
        """Inserts items, which takes a time for each, and some for the calls."""
        del table, priorities, timeout_secs
        site = self._site
        secs = site.draw(site.work.insert, "insert", int(items[0]["lease_id"]))
        site.clock.sleep(secs * len(items) + site.work.calls.insert)
        site.buffer.extend(items)
        site.changed()
