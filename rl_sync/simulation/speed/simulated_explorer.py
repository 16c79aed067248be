"""An explorer of a simulated run: it leases, pulls weights, generates and delivers.

It makes the same requests, in the same order, as `rl_sync.roles.explorer.loop`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rl_sync.messages.events import (
    Command,
    Finish,
    GrantEvaluation,
    GrantLeases,
    HoldBack,
    LeaseRequested,
    LiveLease,
)
from rl_sync.records.spans import SpanKind
from rl_sync.simulation.event_queue import Action
from rl_sync.simulation.speed.simulated_delivery import SimulatedDelivery
from rl_sync.simulation.speed.simulated_site import BufferedGroup, SimulatedSite
from rl_sync.simulation.speed.simulated_slots import SimulatedSlots
from rl_sync.simulation.speed.simulated_weights import SimulatedWeights

_OF_ANSWER = 0.25
"""Part of `CallTimes.lease` that the answer takes: one of two ways, of two calls."""


@dataclasses.dataclass(eq=False)
class _RolloutUnderWay:
    """A rollout under way.

    Attributes:
      factor: noise of its time.
      leases: leases that it has begun or goes on with.
      whole: number of groups that it has finished.
    """

    step: int
    began_secs: float
    factor: float
    leases: list[int]
    whole: int = 0
    tokens: int = 0
    steps: int = 0
    prefill_secs: float = 0.0


class TimedExplorer:
    """Drives an explorer until the master says that there is nothing more to do.

    Args:
      site: the run.
      weights: the way of its weights.
      number: number of the explorer, from 1.
    """

    def __init__(self, site: SimulatedSite, weights: SimulatedWeights, number: int) -> None:
        self._site, self._weights, self._number = site, weights, number
        self._name = site.name(number)
        self._version = -1
        self._slots = SimulatedSlots(site.plan.slots)
        self._groups: dict[int, BufferedGroup] = {}
        self._rollouts = 0
        self._held: tuple[float, str] | None = None
        self._answer: Command | None = None
        self._delivery = SimulatedDelivery(site, number)
        self._is_over = False
        site.watch_for_work(self._look_again)

    def begin(self) -> None:
        """Asks for the first leases."""
        self._go_on()

    # Leases.

    def _request(self) -> LeaseRequested:
        site, at_hand = self._site, self._weights.at_hand(self._number)
        if self._version < 0:
            return LeaseRequested(self._number, site.now)
        return LeaseRequested(
            self._number,
            site.now,
            unfinished=len(self._groups),
            room=self._room() if site.plan.streams else None,
            version=None if at_hand is None else max(at_hand, self._version),
        )

    def _room(self) -> int:
        """Returns the number of groups that may begin in a streaming rollout."""
        rows = len(self._site.work.lengths[0])
        return max(0, (self._slots.slots - self._slots.occupied) // rows + 1)

    def _go_on(self) -> None:
        """Takes the answer that ended a streaming rollout, or asks for leases."""
        answer, self._answer = self._answer, None
        if answer is None or isinstance(answer, HoldBack):
            answer = self._site.ask(self._request())
        match answer:
            case HoldBack(reason):
                self._held = self._held or (self._site.now, reason)
            case Finish():
                self._end_wait()
                self._is_over = True
            case GrantEvaluation():
                waited = self._end_wait()
                self._obtain(answer, lambda: self._evaluate(answer.step), waited)
            case GrantLeases():
                waited = self._end_wait()
                self._obtain(answer, lambda: self._roll_out(answer), waited)

    def _look_again(self) -> None:
        if self._held is not None and not self._is_over:
            self._go_on()

    def _end_wait(self) -> bool:
        """Ends a wait for leases; returns whether there was one."""
        if self._held is None:
            return False
        began, reason = self._held
        self._held = None
        self._site.record(self._name, SpanKind.WAIT, began, reason=reason)
        return True

    def _obtain(self, grant: GrantLeases | GrantEvaluation, then: Action, waited: bool) -> None:
        """Receives the weights of a grant, once its answer has arrived.

        Args:
          waited: whether the call waited at the master, so that only the answer travels.
        """
        secs = self._site.work.calls.lease * (_OF_ANSWER if waited else 1.0)
        if secs:
            self._site.queue.after(secs, lambda: self._receive(grant, then))
        else:
            self._receive(grant, then)

    def _receive(self, grant: GrantLeases | GrantEvaluation, then: Action) -> None:
        if self._suits(grant):
            then()
            return

        def received(version: int) -> None:
            self._version = version
            then()

        self._weights.fetch(self._number, grant.version, grant.exactly, received)

    def _suits(self, grant: GrantLeases | GrantEvaluation) -> bool:
        newer = self._version > grant.version and not grant.exactly
        return self._version == grant.version or newer

    def _evaluate(self, step: int) -> None:
        site, began, version = self._site, self._site.now, self._version

        def done() -> None:
            site.record(self._name, SpanKind.EVALUATION, began, step=step, version=version)
            self._go_on()

        site.machine.work(False, site.draw(site.work.evaluate, "evaluate", step), done)

    # Rollouts.

    def _roll_out(self, grant: GrantLeases) -> None:
        self._rollouts += 1
        factor = self._site.draw(
            self._site.work.decoding.noise, "rollout", self._number, self._rollouts
        )
        leases = [lease.lease_id for lease in grant.leases]
        rollout = _RolloutUnderWay(grant.step, self._site.now, factor, leases)
        self._begin_groups(grant.leases)
        self._part(rollout, len(grant.leases))

    def _begin_groups(self, leases: Sequence[LiveLease]) -> None:
        for lease in leases:
            lengths = self._site.lengths(lease.ordinal, lease.attempt)
            self._slots.add(lease.lease_id, lengths)
            self._groups[lease.lease_id] = BufferedGroup(
                lease.lease_id, lease.ordinal, self._version, sum(lengths)
            )

    def _part(self, rollout: _RolloutUnderWay, begun: int) -> None:
        """Decodes a part of a rollout: a chunk if groups are delivered one by one, or all."""
        plan, decoding = self._site.plan, self._site.work.decoding
        steps = plan.chunk_tokens if plan.in_parts else math.inf
        tokens = plan.budget_tokens if plan.budget_tokens and not plan.in_parts else math.inf
        decoded = self._slots.advance(steps, tokens)
        prefill_secs = decoding.prefill_secs * begun
        secs = prefill_secs + decoding.secs(decoded.steps, decoded.row_steps)
        rollout.tokens += decoded.row_steps
        rollout.steps += decoded.steps
        rollout.prefill_secs += prefill_secs

        def done() -> None:
            groups = [self._groups.pop(group) for group in decoded.whole]
            rollout.whole += len(groups)
            if self._goes_on(rollout):
                self._delivery.deliver(groups, lambda: self._next_part(rollout))
                return
            self._close(rollout)
            self._delivery.deliver(groups, self._go_on)

        self._site.machine.work(False, secs * rollout.factor, done)

    def _goes_on(self, rollout: _RolloutUnderWay) -> bool:
        plan = self._site.plan
        if plan.streams:
            return rollout.whole < plan.master.groups_per_lease
        return plan.in_parts and bool(self._groups)

    def _next_part(self, rollout: _RolloutUnderWay) -> None:
        """Takes further leases if the explorer streams, and decodes on."""
        if not self._site.plan.streams:
            self._part(rollout, 0)
            return
        plan = self._site.plan
        has_newer = plan.swaps and self._weights.newest(self._number) > self._version
        if self._groups and not has_newer and not self._room():
            self._part(rollout, 0)
            return
        answer = self._site.ask(self._request())
        if isinstance(answer, GrantLeases) and self._suits(answer):
            rollout.leases += [lease.lease_id for lease in answer.leases]
            self._begin_groups(answer.leases)
            self._part(rollout, len(answer.leases))
            return
        self._answer = answer
        self._close(rollout)
        self._go_on()

    def _close(self, rollout: _RolloutUnderWay) -> None:
        self._site.record(
            self._name,
            SpanKind.ROLLOUT,
            rollout.began_secs,
            step=rollout.step,
            version=self._version,
            leases=rollout.leases,
            tokens=rollout.tokens,
            carried_over=len(self._groups),
            engine={"steps": rollout.steps, "prefill_secs": rollout.prefill_secs},
        )
