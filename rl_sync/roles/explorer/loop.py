"""The explorer's loop: executes the commands of the explorer's life, and sends it the events.

It leases prompts, pulls weights, generates groups, and delivers them; `life` decides when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from rl_sync.cluster.session import Deadline, HandOverError, RunStoppedError, Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.isolation.codec import Records
from rl_sync.messages.call import request_number
from rl_sync.messages.master_calls import AskLease, HandInEvaluation, Report, moment_of
from rl_sync.messages.run_result import RunResult
from rl_sync.records.chaos_windows import SYNC
from rl_sync.records.run_totals import draft_counts, install_counts
from rl_sync.records.spans import SpanKind
from rl_sync.roles.evaluation.evaluator import await_evaluations
from rl_sync.roles.evaluation.pinned_evaluations import EvaluationsBeside
from rl_sync.roles.explorer import commands
from rl_sync.roles.explorer.actor import DifferentTaskError, Explorer, ExplorerState, Newer
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.explorer.life import TRAINER, Commands, ExplorerLife, ExplorerPlan
from rl_sync.roles.explorer.progress_teller import ProgressTeller
from rl_sync.roles.token_recorder import TokenRecorder
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.rollout.episodes.episode_records import counted_tokens
from rl_sync.rollout.served.vllm_calls import EngineAwayError, EngineRefusedError
from rl_sync.types import Group, Params
from rl_sync.weights.ends_interface import Puller, WeightsTimeoutError, WeightsTransferError

_RECEIVE_POLL_SECS = 10.0
_PAST_VERSION_SECS = 2.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class ExplorerLoop:
    """Drives the explorer actor until the master says that there is nothing more to do.

    Attributes:
      session: session of this process.
      number: number of the explorer, from 1.
      explorer: the actor.
      blank: makes parameters of the right shapes, to compile with before the first pull.
      puller: source of weights.
      began_secs: time when the weights of the last pull could begin to travel; see `ExplorerEnd`.
      at_hand: returns the newest version that is here already; None if weights come on demand.
      sync_kind: span kind of a pull.
      delivery: gets groups scored, and inserts them.
      evaluations: completes held-out problems on request, beside the rollouts.
      tokens: records the generated tokens; None if nothing records them.
    """

    session: Session
    number: int
    explorer: Explorer
    blank: Callable[[], Params]
    puller: Puller
    began_secs: Callable[[], float]
    at_hand: Callable[[], int | None]
    sync_kind: SpanKind
    delivery: GroupDelivery
    evaluations: EvaluationsBeside
    tokens: TokenRecorder | None = None
    _life: ExplorerLife = dataclasses.field(init=False)
    _teller: ProgressTeller = dataclasses.field(init=False)
    _commands: Commands[None] = dataclasses.field(init=False)
    _state: ExplorerState = dataclasses.field(init=False)
    _groups: list[Group] = dataclasses.field(default_factory=list)
    _deadline: Deadline = dataclasses.field(init=False)
    _request: int = 0
    _failure: WeightsTransferError | None = None
    _span: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    _attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self) -> None:
        """Generates until the end of the run.

        Raises:
          TimeoutError: a wait passed its deadline.
          PeerLostError: the master is gone.
          HandOverError: this process was asked to end; the master has the tokens in flight.
        """
        with (
            self.session.spans.span(SpanKind.COMPILE),
            self.session.showing(lambda: (self.explorer.engine.stats.programs, None)),
        ):
            self.explorer.compile(self.blank())
            if self.session.settings.explorers_evaluate_every:
                self.evaluations.compile(self.blank())
        self._rest()
        if self.tokens is not None:
            self.tokens.compiled(self.explorer.engine.stats)
        self.session.settle()
        every_tokens = self.session.settings.rollout.progress_tokens
        self._teller = ProgressTeller(self.session, self.explorer, every_tokens)
        self._life = ExplorerLife(self._plan())
        self._commands = self._life.commands()
        try:
            with self._span:
                self._perform(None)
        except RunStoppedError:
            pass  # The master records our leases as dropped.
        except HandOverError:
            if self._life.version is not None:
                self._teller.tell_all(self._state.unfinished)
            raise
        finally:
            self._teller.close()
            self.evaluations.close()
            self.delivery.close()
        if self.tokens is not None:
            self.tokens.end(self.explorer.engine.stats)

    def _plan(self) -> ExplorerPlan:
        return ExplorerPlan(
            groups=self.explorer.groups,
            in_parts=self.explorer.in_parts,
            streams=self.explorer.streams,
            swaps=self.session.settings.rollout.swap == "in_flight",
            is_elastic=self.session.settings.is_elastic,
            tells=self.session.settings.rollout.progress_tokens > 0,
        )

    def _perform(self, event: commands.ExplorerEvent) -> None:
        """Sends an event, and executes the commands that follow.

        Returns at the end of the run, or at `GoOn`, where a part of a rollout goes on.
        """
        while True:
            try:
                command = self._commands.send(event)
            except StopIteration:
                return
            if isinstance(command, commands.GoOn):
                return
            event = self._execute(command)

    def _execute(self, command: commands.ExplorerCommand) -> commands.ExplorerEvent:
        match command:
            case commands.StartDeadline(what, whom):
                self._deadline = self.session.deadline(what, whom)
            case commands.CheckDeadline():
                self._deadline()
            case commands.RenewDeadline():
                self._deadline.renew()
            case commands.BeginWait(reason, version):
                of_version = {} if version is None else {"version": version}
                wait = {"reason": reason, "for_whom": TRAINER}
                self._open(SpanKind.WAIT, **of_version, **wait)
            case commands.EndWait():
                self._span.close()
            case commands.Pause(secs):
                self.session.clock.sleep(secs)
            case commands.CheckDelivery():
                self.session.agree("delivery", self.delivery.check)
            case commands.Look():
                return commands.Looked(*self.session.agree("look", lambda: self._look(command)))
            case commands.Ask():
                if not command.poll_secs:  # A request that waits is the one before, again.
                    self._request = request_number()
                call = AskLease(self.number, **dataclasses.asdict(command), request=self._request)
                answer, now = self.session.agree(
                    "grant", lambda: (self.session.call(call), self.session.clock.now())
                )
                return commands.WorkAnswered(answer, now)
            case commands.AwaitVersion(version, poll_secs):
                found = self.session.agree("newest", lambda: self.puller.newest(version, poll_secs))
                return found
            case commands.Pull():
                self.session.spans.enter(SYNC)
                return self._swap(command) if command.step is None else self._pull(command)
            case commands.TellFailure(why):
                _log.warning("A version did not arrive, and is asked for again: %s", why)
            case commands.GiveUp(why):
                raise WeightsTransferError(why) from self._failure
            case commands.BeginRollout(step):
                self._begin(step)
            case commands.RollOut():
                return self._roll_out(command)
            case commands.TellTokens():
                self.session.check()
                self._teller.tell(self._state.unfinished)
            case commands.EndRollout():
                self._end()
            case commands.Deliver():
                self.delivery.deliver(self._groups)
            case commands.BeginEvaluation():
                return self._begin_evaluation(command.version)
            case commands.Evaluate():
                self._evaluate(delays=False)
                return self.evaluations.left
            case commands.AwaitMeasured():
                await_evaluations(self.session)
        return None

    def _open(self, kind: SpanKind, **attributes: Any) -> None:
        """Opens a span, which is closed by another command, or by an exception."""
        span = self.session.spans.span(kind, **attributes)
        self._attributes = self._span.enter_context(span)

    def _look(self, command: commands.Look) -> list[Any]:
        now, after = self.session.clock.now(), command.newest_after_secs
        asks = after is not None and now >= after
        return [now, self.at_hand(), self.puller.newest() if asks else None]

    def _pull(self, command: commands.Pull) -> commands.ExplorerEvent:
        """Receives the requested version; keeps unfinished groups."""
        since = command.since_secs
        started = self.session.spans.now() if since is None else since
        if self.session.settings.merges_in_place:
            self._let_go()
        wanted = {"exactly" if command.exactly else "at_least": command.version}
        try:
            version, params = self.puller.pull(**wanted, timeout_secs=_RECEIVE_POLL_SECS)
        except WeightsTimeoutError:
            return commands.NotPulled(started)
        except WeightsTransferError as error:
            self._failure = error
            return commands.NotPulled(started, str(error))
        self._record_pull(started, version=version, step=command.step)
        self.session.facts["version"] = version
        unfinished = () if self._life.version is None else self._state.unfinished
        self._state = ExplorerState(version, params, unfinished)
        return version

    def _swap(self, command: commands.Pull) -> commands.ExplorerEvent:
        """Receives newer weights for completions in flight, which go on without if that fails."""
        started = self.session.spans.now()
        try:
            version, params = self.puller.pull(
                at_least=command.version, timeout_secs=_RECEIVE_POLL_SECS
            )
        except WeightsTimeoutError:
            return commands.NotPulled(started)
        except WeightsTransferError as error:
            _log.warning("Newer weights did not arrive: %s", error)
            return commands.NotPulled(started)
        self._record_pull(started, version=version)
        self._state = self._state._replace(version=version, params=params)
        return version

    def _record_pull(self, started: float, **attributes: Any) -> None:
        """Records a pull from when the weights could travel; the puller records a wait before."""
        began, spans = max(started, self.began_secs()), self.session.spans
        spans.record(self.sync_kind, began, spans.now(), **attributes)

    def _begin(self, step: int) -> None:
        self._before, self._started = self.explorer.engine.stats, self.session.clock.now()
        self._lost_before_secs = self.evaluations.lost_secs
        state = self._state
        self._open(SpanKind.ROLLOUT, step=step, version=state.version, leases=[])
        self._attributes["resumed"] = len(state.unfinished)

    def _roll_out(self, command: commands.RollOut) -> commands.ExplorerEvent:
        leases = [*command.leases]
        self._attributes["leases"] += [lease.lease_id for lease in leases]
        if given := sum(counted_tokens(one) for lease in leases for _, one in lease.begun):
            self._attributes["given"] = given + self._attributes.get("given", 0)
            if self.tokens is not None:
                self.tokens.begin(given)
        newer: Newer | None = self._newer if command.in_chunks else None
        if (tokens := self.tokens) is not None and not self.explorer.streams:
            newer = self._looking(tokens, newer)
        try:
            self._state, self._groups = self.explorer.rollout(
                self._state, leases, newer, self._evaluate
            )
        except NonFiniteLogitsError as error:
            raise _unusable(self.explorer.engine.version, error) from error
        except (DifferentTaskError, EngineAwayError, EngineRefusedError) as error:
            raise RunEndedError(str(error)) from error
        if tokens is not None:
            in_flight, size = self._tokens_in_flight, self.explorer.group_size
            tokens.count(self.explorer.engine.stats, in_flight, self._groups, size)
        return commands.RolledOut(len(self._groups), *self._in_flight(), self.evaluations.left)

    def _looking(self, tokens: TokenRecorder, newer: Newer | None) -> Newer:
        """Returns a function that records the tokens so far, and asks for newer weights."""

        def look(state: ExplorerState) -> ExplorerState | None:
            tokens.look(self.explorer.engine.stats)
            return None if newer is None else newer(state)

        return look

    @property
    def _tokens_in_flight(self) -> int:
        """Number of tokens of unfinished groups; before the first weights there are none."""
        has_begun = self._life.version is not None
        return self.explorer.tokens_in_flight(self._state) if has_begun else 0

    def _newer(self, state: ExplorerState) -> ExplorerState | None:
        """Returns the weights to go on with, for completions in flight; None for the same."""
        self._state = state
        self._perform(commands.ChunkEnded())
        return None if self._state.version == state.version else self._state

    def _in_flight(self) -> tuple[int, int | None]:
        """Returns the number of unfinished groups, and of those that may begin beside them."""
        room = self.explorer.room(self._state) if self.explorer.streams else None
        return len(self._state.unfinished), room

    def _end(self) -> None:
        attributes, left = self._attributes, self._state.unfinished
        attributes["in_flight" if self.explorer.streams else "carried_over"] = len(left)
        stats = self.explorer.engine.stats - self._before
        attributes["tokens"] = tokens = stats.decode_tokens
        attributes["engine"] = stats.summary()
        if stats.drafted_tokens and self.session.leads:
            counts = draft_counts(
                sampled=tokens, drafted=stats.drafted_tokens, accepted=stats.accepted_tokens
            )
            self.session.spans.count(counts)
        if stats.installs and self.session.leads:
            counts = install_counts(
                installs=stats.installs,
                install_secs=stats.install_secs,
                paused_secs=stats.paused_secs,
            )
            self.session.spans.count(counts)
        if stats.differing_tokens:
            attributes["differing"] = stats.differing_tokens
        if lost_secs := self.evaluations.lost_secs - self._lost_before_secs:
            attributes["evaluating_secs"] = round(lost_secs, 4)
        self._span.close()
        rate = tokens / (self.session.clock.now() - self._started)
        step, version = attributes["step"], self._state.version
        self.session.facts.update(step=step, version=version, tokens_per_sec=rate)

        self._rest()

    def _rest(self) -> None:
        """Leaves the memory of the engine's cache to a trainer that trains meanwhile."""
        if self.session.settings.takes_turns:
            self.explorer.engine.rest()

    def _let_go(self) -> None:
        """Frees weights that no rollout needs any more, before the next ones are made."""
        self.explorer.engine.unload()
        if self._life.version is not None and not self._state.unfinished:
            self._state = self._state._replace(params=None)

    def _begin_evaluation(self, version: int) -> commands.ExplorerEvent:
        """Begins an evaluation with exactly these weights, if they are still there."""
        own = self._life.version
        if own != version:
            started = self.session.spans.now()
            try:
                is_past = self._newest() > version
                secs = _PAST_VERSION_SECS if is_past else _RECEIVE_POLL_SECS
                _, params = self.puller.pull(exactly=version, timeout_secs=secs)
            except (WeightsTimeoutError, WeightsTransferError) as error:
                _log.warning("Version %s cannot be evaluated: %s", version, error)
                why = f"its weights are gone; the newest version is {self._newest()}"
                self.session.call(Report(RunResult(left_out={moment_of(version): why})))
                return commands.EvaluationBegun(self.evaluations.left, own)
            self._record_pull(started, version=version)
            if own is None or version > own:
                unfinished = () if own is None else self._state.unfinished
                self._state, own = ExplorerState(version, params, unfinished), version
                self.session.facts["version"] = version
        else:
            params = self._state.params
        self.evaluations.begin(version, params)
        return commands.EvaluationBegun(self.evaluations.left, own)

    def _newest(self) -> int:
        """Returns the newest published version."""
        return self.session.agree("newest", self.puller.newest)

    def _evaluate(self, *, delays: bool = True) -> None:
        """Goes on with an evaluation for a chunk; hands it in at its end.

        Args:
          delays: whether rollouts stand still meanwhile.
        """
        if (made := self.evaluations.step(delays=delays)) is None:
            return
        version, spans = made.version, self.session.spans
        spans.record(
            SpanKind.EVALUATION,
            made.began_secs,
            spans.now(),
            step=version,
            version=version,
            busy_secs=round(made.busy_secs, 4),
            lost_secs=round(made.lost_secs, 4),
            background=True,
        )
        if self.tokens is not None:
            self.tokens.engine_ended(made.stats)
            stats, in_flight = self.explorer.engine.stats, self._tokens_in_flight
            self.tokens.evaluated(stats, in_flight, made.tokens)
        items = Records(made.items)
        self.session.call(HandInEvaluation(moment_of(version), version, items, made.lost_secs))


def _unusable(version: int, error: NonFiniteLogitsError) -> RunEndedError:
    return RunEndedError(f"With the weights of version {version}: {error}")
