"""The explorer's loop: lease prompts, pull weights, generate groups, deliver them."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from rl_sync.cluster.master_calls import AskLease, HandInEvaluation, LeaseGrant
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.request_numbers import request_number
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.isolation.codec import Records
from rl_sync.records.spans import SpanKind
from rl_sync.roles.evaluator import EvaluationSet, await_evaluations
from rl_sync.roles.explorer.actor import DifferentTaskError, Explorer, ExplorerState
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.master.events import Finish, GrantEvaluation, HoldBack
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.types import Group, Lease, Params
from rl_sync.weights.ends_interface import Puller, WeightsTimeoutError, WeightsTransferError

_POLL_SECS = 1.0
_PAUSE_SECS = 0.02
_RECEIVE_POLL_SECS = 10.0
_IN_FLIGHT_POLL_SECS = 0.1
_NO_ROOM_SECS = 0.02
"""Time between two requests for leases while the master has none and others are in flight."""

_log = logging.getLogger(__name__)

Answer = LeaseGrant | GrantEvaluation | HoldBack | Finish


@dataclasses.dataclass
class ExplorerLoop:
    """Drives the explorer actor until the master says that there is nothing more to do.

    Attributes:
      session: session of this process.
      number: number of the explorer, from 1.
      explorer: the actor.
      blank: makes parameters of the right shapes, to compile with before the first pull.
      puller: source of weights.
      granted_secs: time when the transfer of the last pull began, if the puller needed a grant.
      at_hand: returns the newest version that is here already; None if weights come on demand.
      sync_kind: span kind of a pull.
      delivery: gets groups scored, and inserts them.
      examination: held-out problems that the explorer completes on request.
    """

    session: Session
    number: int
    explorer: Explorer
    blank: Callable[[], Params]
    puller: Puller
    granted_secs: Callable[[], float]
    at_hand: Callable[[], int | None]
    sync_kind: SpanKind
    delivery: GroupDelivery
    examination: EvaluationSet
    _has_evaluated: bool = False
    _next_look: float = 0.0
    _next_request: float = 0.0
    _answer: Answer | None = None

    def run(self) -> None:
        """Generates until the end of the run.

        Raises:
          TimeoutError: a wait passed its deadline.
          PeerLostError: the master is gone.
        """
        state: ExplorerState | None = None
        with (
            self.session.spans.span(SpanKind.COMPILE),
            self.session.showing(lambda: (self.explorer.engine.stats.programs, None)),
        ):
            self.explorer.compile(self.blank())
        settle()
        try:
            while (grant := self._grant(state)) is not None:
                if state is None or not _suits(grant, state.version):
                    state = self._pull(grant, state)
                if isinstance(grant, GrantEvaluation):
                    state = self._evaluate(state)
                    continue
                state, groups = self._generate(grant, state)
                if groups:
                    self.delivery.deliver(groups)
            if self._has_evaluated:
                await_evaluations(self.session)
        except RunStoppedError:
            pass  # The master records our leases as dropped.
        finally:
            self.delivery.close()

    def _grant(self, state: ExplorerState | None) -> LeaseGrant | GrantEvaluation | None:
        """Returns the next work: from the answer that ended a streaming rollout, or a new answer.

        None if there is no more work.
        """
        answer, self._answer = self._answer, None
        if answer is None or isinstance(answer, HoldBack):
            answer = self.session.agree("grant", lambda: self._lease(state))
        return None if isinstance(answer, Finish) else answer

    def _lease(self, state: ExplorerState | None) -> LeaseGrant | GrantEvaluation | Finish:
        """Asks for work, and waits as long as the master holds the explorer back."""
        deadline = self.session.deadline("prompts", "the master, which waits for the trainer")
        call = self._request(state)
        waiting = dataclasses.replace(call, poll_secs=_POLL_SECS)
        self.delivery.check()
        answer = self.session.call(call)
        while isinstance(answer, HoldBack):
            reason = answer.reason
            with self.session.spans.span(SpanKind.WAIT, reason=reason, for_whom="the trainer"):
                while isinstance(answer, HoldBack) and answer.reason == reason:
                    deadline()
                    self.delivery.check()
                    step, answer = answer.trainer_step, self.session.call(waiting)
                    if isinstance(answer, HoldBack) and answer.trainer_step != step:
                        deadline.renew()  # A long SFT must not end the wait.
        return answer

    def _request(self, state: ExplorerState | None) -> AskLease:
        if state is None:
            return AskLease(self.number, request=request_number())
        room = self.explorer.room(state) if self.explorer.streams else None
        version = self.at_hand()
        if version is not None:
            version = max(version, state.version)
        return AskLease(
            self.number,
            len(state.unfinished),
            room=room,
            version=version,
            request=request_number(),
        )

    def _pull(
        self, grant: LeaseGrant | GrantEvaluation, state: ExplorerState | None
    ) -> ExplorerState:
        """Waits for the requested version, and receives it; keeps unfinished groups."""
        wanted = {"exactly" if grant.exactly else "at_least": grant.version}
        what = f"the weights of version {grant.version}"
        deadline = self.session.deadline(what, "the trainer")
        self.session.agree("weights", lambda: self._await(grant.version, deadline))
        started = self.session.spans.now()
        version, params = self._receive(wanted, deadline)
        started = max(started, self.granted_secs())
        self.session.spans.record(
            self.sync_kind, started, self.session.spans.now(), version=version, step=grant.step
        )
        self.session.facts["version"] = version
        return ExplorerState(version, params, state.unfinished if state else ())

    def _await(self, version: int, deadline: Callable[[], None]) -> None:
        """Waits until a version is available."""
        if self.puller.newest() >= version:
            return
        wait = {"reason": "synchronization", "for_whom": "the trainer"}
        with self.session.spans.span(SpanKind.WAIT, version=version, **wait):
            while self.puller.newest(version, _POLL_SECS) < version:
                deadline()
                time.sleep(_PAUSE_SECS)  # A stop is noticed immediately.

    def _receive(self, wanted: dict[str, int], deadline: Callable[[], None]) -> tuple[int, Params]:
        while True:
            try:
                return self.puller.pull(**wanted, timeout_secs=_RECEIVE_POLL_SECS)
            except WeightsTimeoutError:
                deadline()
            except WeightsTransferError as error:
                if not self.session.settings.is_elastic:
                    raise
                # The trainer died, and is started again: it will offer the version again.
                _log.warning("A version did not arrive, and is asked for again: %s", error)
                deadline()
                time.sleep(_POLL_SECS)

    def _generate(
        self, grant: LeaseGrant, state: ExplorerState
    ) -> tuple[ExplorerState, list[Group]]:
        """Runs a rollout; returns the finished groups that are not delivered yet.

        A rollout in parts delivers groups once they are finished. A streaming rollout takes further
        leases between its chunks. It ends after as many groups as fill the slots, or when the
        master's answer is not leases for the current weights.
        """
        leases = [lease.lease_id for lease in grant.leases]
        before, started = self.explorer.engine.stats, time.monotonic()
        with self.session.spans.span(
            SpanKind.ROLLOUT, step=grant.step, version=state.version, leases=leases
        ) as attributes:
            attributes["resumed"] = len(state.unfinished)
            state, groups = self._roll_out(state, grant.leases)
            whole = len(groups)
            while self._goes_on(state, whole):
                if groups:
                    self.delivery.deliver(groups)
                if (more := self._more(state)) is None:
                    groups = []
                    break
                leases += [lease.lease_id for lease in more]
                state, groups = self._roll_out(state, more)
                whole += len(groups)
            left = "in_flight" if self.explorer.streams else "carried_over"
            attributes[left] = len(state.unfinished)
            stats = self.explorer.engine.stats - before
            attributes["tokens"] = tokens = stats.decode_tokens
            attributes["engine"] = stats.summary()
        rate = tokens / (time.monotonic() - started)
        self.session.facts.update(step=grant.step, version=state.version, tokens_per_sec=rate)
        return state, groups

    def _goes_on(self, state: ExplorerState, whole: int) -> bool:
        """Says whether a rollout has another part, after `whole` finished groups."""
        if self.explorer.streams:
            return whole < self.explorer.groups
        return self.explorer.in_parts and bool(state.unfinished)

    def _roll_out(
        self, state: ExplorerState, leases: list[Lease]
    ) -> tuple[ExplorerState, list[Group]]:
        newer = self._newer if self._swaps_in_flight and not self.explorer.streams else None
        try:
            return self.explorer.rollout(state, leases, newer)
        except NonFiniteLogitsError as error:
            raise RunEndedError(
                f"With the weights of version {self.explorer.engine.version}: {error}"
            ) from error
        except DifferentTaskError as error:
            raise RunEndedError(str(error)) from error

    @property
    def _swaps_in_flight(self) -> bool:
        return self.session.settings.rollout.swap == "in_flight"

    def _more(self, state: ExplorerState) -> list[Lease] | None:
        """Returns the leases that a rollout begins in its next part; None if the rollout ends."""
        if not self.explorer.streams:
            self.session.agree("delivery", self.delivery.check)
            return []
        answer = self.session.agree("more leases", lambda: self._look(state))
        if answer is None:
            return []
        if isinstance(answer, LeaseGrant) and _suits(answer, state.version):
            return answer.leases
        self._answer = answer
        return None

    def _look(self, state: ExplorerState) -> Answer | None:
        """Asks the master for work, if there is room or there are newer weights; does not wait."""
        self.delivery.check()
        has_newer = self._swaps_in_flight and self._has_newer(state.version)
        may_ask = self.explorer.room(state) and time.monotonic() >= self._next_request
        if state.unfinished and not has_newer and not may_ask:
            return None
        answer = self.session.call(self._request(state))
        if isinstance(answer, LeaseGrant) and not answer.leases:
            self._next_request = time.monotonic() + _NO_ROOM_SECS
        return answer

    def _evaluate(self, state: ExplorerState) -> ExplorerState:
        """Completes the held-out problems with the current weights; the master scores them."""
        version = state.version
        with self.session.spans.span(SpanKind.EVALUATION, step=version, version=version):
            try:
                state, completions = self.explorer.complete(state, self.examination.requests)
            except NonFiniteLogitsError as error:
                raise RunEndedError(f"With the weights of version {version}: {error}") from error
            items = self.examination.written(completions)
            self.session.call(HandInEvaluation(f"after step {version}", version, Records(items)))
        self._has_evaluated = True
        return state

    def _newer(self, state: ExplorerState) -> ExplorerState | None:
        """Returns weights that were published since, for completions in flight."""
        if not self.session.agree("look for newer", lambda: self._has_newer(state.version)):
            return None
        with self.session.spans.span(self.sync_kind) as attributes:
            try:
                version, params = self.puller.pull(
                    at_least=state.version + 1, timeout_secs=_RECEIVE_POLL_SECS
                )
            except WeightsTimeoutError:
                return None  # The version was withdrawn: the current weights are used further.
            attributes["version"] = version
        return ExplorerState(version, params)

    def _has_newer(self, version: int) -> bool:
        """Says whether there are newer weights; it asks only now and then."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _IN_FLIGHT_POLL_SECS
        return self.puller.newest() > version


def _suits(grant: LeaseGrant | GrantEvaluation, version: int) -> bool:
    """Says whether a version is the one that a grant asks for, or newer if the grant allows it."""
    return version == grant.version or (version > grant.version and not grant.exactly)
