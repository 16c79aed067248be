"""The explorer's loop: lease prompts, take weights, generate, have it judged, insert."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from rl_sync.actors.events import Finish, GrantEvaluation, HoldBack
from rl_sync.actors.explorer import Explorer, ExplorerState
from rl_sync.observe.spans import SpanKind
from rl_sync.processes.calls import AskLease, HandInEvaluation, LeaseGrant
from rl_sync.processes.failures import RunError
from rl_sync.processes.session import RunStoppedError, Session
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.runtime.delivery import Delivery
from rl_sync.runtime.evaluation import Examination, await_evaluations
from rl_sync.types import Group, Params
from rl_sync.weights.interface import Puller, WeightsTimeoutError

_POLL_SECS = 1.0
_PAUSE_SECS = 0.02
_RECEIVE_POLL_SECS = 10.0
_IN_FLIGHT_POLL_SECS = 0.1


@dataclasses.dataclass
class ExplorerLoop:
    """Drives the explorer actor until the master says that there is nothing more to do.

    Attributes:
      session: this process's part in the run.
      number: which explorer, from 1.
      explorer: the actor.
      blank: makes parameters of the right shapes, to compile with before there are real ones.
      puller: where weights come from.
      granted_secs: when the transfer of the last pull began, if the puller had to be let in.
      sync_kind: the kind of span that a pull is recorded as.
      delivery: has groups judged and inserts them.
      examination: the held-out problems that it completes when it is asked to.
    """

    session: Session
    number: int
    explorer: Explorer
    blank: Callable[[], Params]
    puller: Puller
    granted_secs: Callable[[], float]
    sync_kind: SpanKind
    delivery: Delivery
    examination: Examination
    _has_evaluated: bool = False
    _next_look: float = 0.0

    def run(self) -> None:
        """Generates until the end of the run.

        Raises:
          TimeoutError: a wait passed its deadline.
          PeerLostError: the master is gone.
        """
        state: ExplorerState | None = None
        with self.session.spans.span(SpanKind.COMPILE):
            self.explorer.compile(self.blank())
        try:
            while (grant := self._grant(state)) is not None:
                if state is None or state.version != grant.version:
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
            pass  # The master's ledger says of what this explorer held that it was dropped.
        finally:
            self.delivery.close()

    def _grant(self, state: ExplorerState | None) -> LeaseGrant | GrantEvaluation | None:
        """Returns what is to be generated next; the first process asks."""
        answer = self.session.agree("grant", lambda: self._lease(state))
        return None if isinstance(answer, Finish) else answer

    def _lease(self, state: ExplorerState | None) -> LeaseGrant | GrantEvaluation | Finish:
        """The master's answer, once it does not hold the explorer back any more."""
        patience = self.session.patience("prompts", "the master, which waits for the trainer")
        call = AskLease(self.number, len(state.unfinished) if state else 0)
        waiting = dataclasses.replace(call, poll_secs=_POLL_SECS)
        self.delivery.check()
        answer = self.session.call(call)
        while isinstance(answer, HoldBack):
            reason = answer.reason
            with self.session.spans.span(SpanKind.WAIT, reason=reason, for_whom="the trainer"):
                while isinstance(answer, HoldBack) and answer.reason == reason:
                    patience()
                    self.delivery.check()
                    answer = self.session.call(waiting)
        return answer

    def _pull(
        self, grant: LeaseGrant | GrantEvaluation, state: ExplorerState | None
    ) -> ExplorerState:
        """Waits for the version that is due, then receives it; keeps what is unfinished."""
        wanted = {"exactly" if grant.exactly else "at_least": grant.version}
        what = f"the weights of version {grant.version}"
        patience = self.session.patience(what, "the trainer")
        self.session.agree("weights", lambda: self._await(grant.version, patience))
        started = self.session.spans.now()
        version, params = self._receive(wanted, patience)
        started = max(started, self.granted_secs())
        self.session.spans.record(
            self.sync_kind, started, self.session.spans.now(), version=version, step=grant.step
        )
        self.session.facts["version"] = version
        return ExplorerState(version, params, state.unfinished if state else ())

    def _await(self, version: int, patience: Callable[[], None]) -> None:
        """Waits until a version can be had."""
        if self.puller.newest() >= version:
            return
        wait = {"reason": "synchronization", "for_whom": "the trainer"}
        with self.session.spans.span(SpanKind.WAIT, version=version, **wait):
            while self.puller.newest(version, _POLL_SECS) < version:
                patience()
                time.sleep(_PAUSE_SECS)  # Of a run that is being stopped it is told at once.

    def _receive(self, wanted: dict[str, int], patience: Callable[[], None]) -> tuple[int, Params]:
        while True:
            try:
                return self.puller.pull(**wanted, timeout_secs=_RECEIVE_POLL_SECS)
            except WeightsTimeoutError:
                patience()

    def _generate(
        self, grant: LeaseGrant, state: ExplorerState
    ) -> tuple[ExplorerState, list[Group]]:
        leases = [lease.lease_id for lease in grant.leases]
        before, started = self.explorer.engine.stats, time.monotonic()
        with self.session.spans.span(
            SpanKind.ROLLOUT, step=grant.step, version=state.version, leases=leases
        ) as attributes:
            attributes["resumed"] = len(state.unfinished)
            newer = self._newer if self.session.settings.rollout.swap == "in_flight" else None
            try:
                state, groups = self.explorer.rollout(state, grant.leases, newer)
            except NonFiniteLogitsError as error:
                raise RunError(
                    f"With the weights of version {self.explorer.engine.version}: {error}"
                ) from error
            attributes["carried_over"] = len(state.unfinished)
            stats = self.explorer.engine.stats - before
            attributes["tokens"] = tokens = stats.decode_tokens
            attributes["engine"] = stats.summary()
        rate = tokens / (time.monotonic() - started)
        self.session.facts.update(step=grant.step, version=state.version, tokens_per_sec=rate)
        return state, groups

    def _evaluate(self, state: ExplorerState) -> ExplorerState:
        """Completes the held-out problems with the weights in use; the master has them judged."""
        version = state.version
        with self.session.spans.span(SpanKind.EVALUATION, step=version, version=version):
            try:
                state, completions = self.explorer.complete(state, self.examination.requests)
            except NonFiniteLogitsError as error:
                raise RunError(f"With the weights of version {version}: {error}") from error
            items = self.examination.written(completions)
            self.session.call(HandInEvaluation(f"after step {version}", version, items))
        self._has_evaluated = True
        return state

    def _newer(self, state: ExplorerState) -> ExplorerState | None:
        """Weights that were published since, for completions that are under way."""
        if not self.session.agree("look for newer", lambda: self._has_newer(state.version)):
            return None
        with self.session.spans.span(self.sync_kind) as attributes:
            try:
                version, params = self.puller.pull(
                    at_least=state.version + 1, timeout_secs=_RECEIVE_POLL_SECS
                )
            except WeightsTimeoutError:
                return None  # It was withdrawn: what is in use will do.
            attributes["version"] = version
        return ExplorerState(version, params)

    def _has_newer(self, version: int) -> bool:
        """Looks for newer weights, but not all the time."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _IN_FLIGHT_POLL_SECS
        return self.puller.newest() > version
