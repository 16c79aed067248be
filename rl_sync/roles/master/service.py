"""The master's server: the master actor behind remote calls, with its ledger and scoring."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rl_sync.addresses import parts_of
from rl_sync.algorithms.screening import filter_values
from rl_sync.checkpoints.ledger import Ledger
from rl_sync.cluster.heartbeats import Heartbeats
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.pending import PendingCalls
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.cluster.secret import secret_of
from rl_sync.isolation.codec import Records
from rl_sync.isolation.record_json import of_json
from rl_sync.messages import master_calls, scoring_calls, weight_calls
from rl_sync.messages.call import Call, Handler
from rl_sync.messages.events import (
    BatchRequested,
    Command,
    Event,
    ExplorerDied,
    ExplorersSeen,
    Finish,
    GrantBatch,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsKept,
    GroupsScored,
    HoldBack,
    LeaseGrant,
    LeaseRequested,
    LeaveOutEvaluation,
    LiveLease,
    Position,
    Record,
    RunContinued,
    SnapshotSaved,
    Started,
    StopRequested,
    Ticked,
)
from rl_sync.messages.master_calls import HandInEvaluation, moment_of
from rl_sync.messages.run_result import RunResult, Summary
from rl_sync.messages.run_status import RunStatus
from rl_sync.records import accuracy, alarms
from rl_sync.records.json_lines import RecordsError
from rl_sync.records.metrics import measured
from rl_sync.records.run_outcome import RunOutcome, record_end, record_start
from rl_sync.records.usage import UsageRecorder
from rl_sync.role_names import MASTER, TRAINER, explorer_name, is_explorer, number_of
from rl_sync.roles.assembly import wiring
from rl_sync.roles.evaluation.master_evaluations import EvaluationResult, Evaluations
from rl_sync.roles.master import transition, unsolved
from rl_sync.roles.master.group_admission import failed_episodes, filled, score_columns
from rl_sync.roles.master.journal import (
    COUNTED_STEP,
    Journal,
    JournalError,
    Recorded,
    lasting,
    read_journal,
    state_of,
)
from rl_sync.roles.master.kept_progress import KeptProgress
from rl_sync.roles.master.server_memory import CountedStep, ServerMemory
from rl_sync.roles.master.state import balance
from rl_sync.roles.master.status_board import StatusBoard
from rl_sync.roles.master.step_accounts import StepAccounts
from rl_sync.roles.master.weight_registry import WeightRegistry
from rl_sync.scoring.judging import Verdicts
from rl_sync.settings.run_settings import RunSettings
from rl_sync.types import NO_LEASE, Lease
from rl_sync.workdir import Workdir

_TICK_SECS = 0.5
_PENDING_CALLS = 64  # Calls in progress at once, in threads that mostly wait.
_FEWEST_THREADS, _THREADS_EACH, _MOST_THREADS = 32, 2, 2048
"""Threads for calls: each explorer that waits for work, a version or scores occupies one or two."""
T = TypeVar("T")


class MasterServer:
    """Answers the other roles' calls.

    Args:
      settings: settings of the run.
      recovers: whether to go on where an earlier master of this run has ended, from its journal.
      continues: whether all other processes of the run have ended since, too.

    Attributes:
      closed: whether the ledger is closed.

    Raises:
      JournalError: there is no journal, or it is damaged.
    """

    def __init__(self, settings: RunSettings, recovers: bool = False, continues: bool = False):
        self._settings = settings
        workdir = Workdir(settings.workdir)
        recorded = read_journal(workdir.journal) if recovers else None
        ended_secs = recorded.path.stat().st_mtime if recorded else 0.0
        self._journal = Journal(workdir.journal)
        self._task = wiring.load_task(settings)
        self._filter_weights = wiring.filter_weights(settings, self._task)
        self._changed = threading.Condition()
        self._state = transition.MasterState(
            wiring.master_settings(settings, wiring.prompt_pool(settings, self._task))
        )
        memory = ServerMemory(time.time())
        if recorded is not None:
            memory = of_json(ServerMemory, recorded.memory)
            if continues:  # The time since the earlier attempt is not the run's.
                since_secs = max(0.0, time.time() - ended_secs)
                memory = dataclasses.replace(memory, began_secs=memory.began_secs + since_secs)
        self._weights = WeightRegistry(settings.sync.fanout, memory.weights)
        self._ledger = Ledger(settings.workdir)
        with contextlib.suppress(OSError):  # The record is optional.
            record_start(settings.workdir)
        self._board = StatusBoard(settings, memory.began_secs, memory.phase)
        self._result = memory.result
        self._first_lease = memory.first_lease
        self._kept = KeptProgress(settings.rollout.progress_bytes)
        self._began_secs = memory.began_secs
        self._is_new_attempt = continues
        self._attendance = Heartbeats(time.monotonic())
        self._deaths = collections.Counter[int]()  # Of each explorer.
        self._seen_secs: dict[int, float] = {}  # Heartbeats since the last tick, by explorer.
        self.closed = threading.Event()
        with self._changed:  # The trial of the reward, in a thread, may fail at once.
            self._judging = wiring.judging(
                settings, self._task, self._fail, self._board.show, self._scored, self._note
            )
            self._accounts = StepAccounts(settings, self._judging, memory.accounts)
            self._evaluations = self._made_evaluations()
            self._pending = self._made_pending()
            self._desk = self._made_desk()
            if recorded is not None:
                self._recall(memory, recorded)
            if continues:
                self._continue()
            self._begin_file()
        threading.Thread(target=self._tick, name="ticks", daemon=True).start()

    def _made_evaluations(self) -> Evaluations:
        settings = self._settings
        return Evaluations(
            wiring.examination(settings, self._task),
            self._judging,
            category=settings.evaluation.category,
            metric=settings.checkpoint.best,
            workdir=Workdir(settings.workdir),
            publish=self._evaluated,
        )

    def _made_pending(self) -> PendingCalls:
        return PendingCalls(
            scoring_calls.RequestScores.answered_by(self._judge),
            master_calls.AwaitEvaluations.answered_by(lambda call: self._evaluations.wait()),
            threads=_PENDING_CALLS,
            progress=lambda: self._judging.judged + self._evaluations.judged,
            tells_failures=False,
        )

    def answer(self, call: Call[T]) -> T:
        """Answers a call of any kind in `rl_sync.messages.master_calls`.

        What the answer depends on is on disk by then.
        """
        try:
            return self._desk(call)
        finally:
            self._commit()

    def _commit(self) -> None:
        try:
            self._journal.commit()
        except RecordsError as error:
            self._fail(str(error))

    def _lasting(self) -> tuple[Handler, ...]:
        """Returns the handlers of calls that the journal has, and that recovery answers again."""
        return (
            master_calls.EnterPhase.answered_by(self._enter),
            master_calls.Report.answered_by(self._report),
            master_calls.HandInEvaluation.answered_by(self._evaluations.hand_in),
            master_calls.TrainerDied.answered_by(self._trainer_died),
            *self._weights.lasting_handlers(),
        )

    def _made_desk(self) -> CallHandlers:
        return CallHandlers(
            *self._weights.handlers(),
            *(Handler(kind, self._journaled(answer)) for kind, answer in self._lasting()),
            master_calls.AskLease.answered_by(self._lease),
            self._pending.handler(),
            master_calls.TellProgress.answered_by(self._keep_progress),
            master_calls.Claim.answered_by(self._claim),
            master_calls.AskBatch.answered_by(self._batch),
            master_calls.AskBuffered.answered_by(self._buffered),
            master_calls.Happened.answered_by(self._happened),
            master_calls.Resumed.answered_by(self._resumed),
            master_calls.AskProgress.answered_by(self._run_progress),
            master_calls.TrainerReady.answered_by(self._begin),
            master_calls.Trained.answered_by(self._trained),
            master_calls.AskPosition.answered_by(self._position),
            master_calls.AskStatus.answered_by(self._status),
            master_calls.HandInMeasured.answered_by(self._evaluations.publish),
            master_calls.AskKeptSnapshots.answered_by(lambda call: self._evaluations.kept),
            master_calls.WriteMetrics.answered_by(self._write_metrics),
            master_calls.Fail.answered_by(lambda call: self._fail(call.reason)),
            master_calls.CloseLedger.answered_by(self._close),
            master_calls.Heartbeat.answered_by(self._heartbeat),
            master_calls.Leave.answered_by(lambda call: self._attendance.left(call.name)),
            master_calls.AskSilences.answered_by(
                lambda call: self._attendance.silences(call.at_least_secs)
            ),
            weight_calls.AskNewest.answered_by(self._newest),
        )

    def _journaled(self, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the handler of a call that also writes it to the journal."""

        def handle(call: Any) -> Any:
            with self._changed:
                result = answer(call)
                self._note(call)
            return result

        return handle

    def _note(self, record: Any) -> None:
        """Writes a record to the journal."""
        with self._changed:
            self._journal.append(record)

    def _begin_file(self) -> None:
        """Starts a new file of the journal with everything that the master knows."""
        with self._changed:
            memory = ServerMemory(
                began_secs=self._began_secs,
                ledger_bytes=self._ledger.flushed_bytes(),
                phase=self._board.phase,
                result=self._result,
                first_lease=self._first_lease,
                accounts=self._accounts.memory(),
                verdicts=self._judging.kept,
                handed=self._evaluations.handed,
                measured=self._evaluations.measured,
                weights=self._weights.memory(),
            )
            try:
                self._journal.begin(self._state, memory)
            except RecordsError as error:
                self._fail(str(error))

    def _recall(self, memory: ServerMemory, recorded: Recorded) -> None:
        """Takes over what an earlier master knew, from its journal."""
        self._accounts.recall()
        self._judging.recall(memory.verdicts)
        for moment in memory.measured:
            self._evaluations.recall(moment)
        self._state = state_of(recorded.state, self._state.settings)
        handed, records = [*memory.handed], list[Record]()
        answers = {kind.__name__: (kind, answer) for kind, answer in self._lasting()}
        for entry in recorded.entries:
            if entry.kind == COUNTED_STEP:
                step = of_json(CountedStep, entry.fields)
                self._accounts.recall_spent(step)
                records += self._recall_step(step.call)
            elif (event := entry.event) is not None:
                records += self._recall_event(event)
            elif entry.kind == Verdicts.__name__:
                self._judging.recall(of_json(Verdicts, entry.fields))
            elif entry.kind == EvaluationResult.__name__:
                self._show_evaluation(of_json(EvaluationResult, entry.fields))
            elif entry.kind == HandInEvaluation.__name__:
                handed.append(of_json(HandInEvaluation, entry.fields))
            elif entry.kind not in answers:
                raise JournalError(f"{recorded.path} has a {entry.kind}, which this code lacks.")
            else:
                kind, answer = answers[entry.kind]
                answer(of_json(kind, entry.fields))
        self._ledger.restore(memory.ledger_bytes, records)
        for call in handed:
            self._evaluations.hand_in(call)
        now = time.monotonic()  # Explorers could not renew their leases meanwhile.
        seen = dict.fromkeys(range(1, self._settings.explorers + 1), now)
        self._state, _ = transition.transition(self._state, ExplorersSeen(seen))

    def _continue(self) -> None:
        """Takes back the end of the earlier attempt, and the leases of its explorers."""
        self._result = dataclasses.replace(
            self._result, failed=None, digest=None, resumed=self._state.trained_steps
        )
        self._weights.trainer_died()
        for explorer in range(1, self._settings.explorers + 1):
            self._weights.explorer_died(explorer)
        for record in self._recall_event(RunContinued(self._settings.regenerates_buffered)):
            self._write(functools.partial(self._ledger.write, record))

    def _recall_event(self, event: Event) -> list[Record]:
        """Applies an event of the journal; returns its lines of the ledger."""
        self._state, commands = transition.transition(self._state, event)
        if isinstance(event, ExplorerDied):
            self._weights.explorer_died(event.explorer)
        records = [command for command in commands if isinstance(command, Record)]
        self._accounts.forget_scores(records)
        self._leave_out(commands)
        return records

    def _recall_step(self, call: master_calls.Trained) -> list[Record]:
        """Counts a step of the journal; returns its lines of the ledger."""
        live = self._state.live
        leases = [live[one] for one in call.event.lease_ids if one in live]
        records = self._recall_event(call.event)
        self._count(call, leases)
        return records

    def _apply(self, event: Event, entry: Any = None) -> tuple[Any, ...]:
        """Applies an event under the lock, writes it, and returns the actor's answers.

        Args:
          entry: entry of the journal, if it is not the event.
        """
        with self._changed:
            before = self._state
            self._state, commands = transition.transition(before, event)
            if (lasting_event := lasting(before, self._state, event, commands)) is not None:
                self._note(entry or lasting_event)
            self._write_ledger(commands)
            if self._kept:
                self._kept.keep_only(self._state.kept)
            if transition.may_free_work(event, commands):
                self._changed.notify_all()
            return tuple(command for command in commands if not isinstance(command, Record))

    def _write_ledger(self, commands: tuple[Any, ...]) -> None:
        """Writes the ledger, and records evaluations that are left out."""
        self._leave_out(commands)
        records = [command for command in commands if isinstance(command, Record)]
        for record in records:
            self._write(functools.partial(self._ledger.write, record))
        self._accounts.forget_scores(records)

    def _leave_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, LeaveOutEvaluation):
                left_out = {moment_of(command.version): command.why}
                self._report(master_calls.Report(RunResult(left_out=left_out)))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes to the ledger; if that fails, stops the run, whose ledger would have a gap."""
        try:
            write()
        except RecordsError as error:
            self._fail(str(error))

    def _resumed(self, call: master_calls.Resumed) -> None:
        """Forgets the records of later steps."""
        try:
            self._first_lease = self._ledger.resume(call.step)
        except RecordsError as error:
            self._fail(str(error))
        for line in self._accounts.resume(call):
            if line["phase"] == "evaluation":
                self._merge(RunResult(evaluations={self._moment(line["step"]): measured(line)}))
        self._evaluations.resume(call.step)
        self._begin_file()  # The ledger has lines that no event has caused.

    def _moment(self, step: int) -> str:
        """Returns the name of an earlier evaluation, from before the run resumed."""
        if step == 0:
            return f"before {self._settings.algorithm.learning}"
        return moment_of(step)

    def _run_progress(self, call: master_calls.AskProgress) -> master_calls.Progress | None:
        del call
        with self._changed:
            state = self._state
            if not state.begun:
                return None
            start = state.settings.schedule.start
            return master_calls.Progress(
                start,
                state.trained_steps,
                [*self._result.evaluations],
                is_new_attempt=self._is_new_attempt,
                drops_buffered=self._settings.regenerates_buffered,
            )

    def _trainer_died(self, call: master_calls.TrainerDied) -> None:
        self._attendance.lost(TRAINER)
        self._weights.trainer_died()
        self._board.show(call.reason)

    def _begin(self, call: master_calls.TrainerReady) -> None:
        # Leases that were granted after the snapshot have used these ids.
        next_lease = max(call.position.next_lease, self._first_lease)
        self._apply(Started(call.position._replace(next_lease=next_lease)))

    def _lease(
        self, call: master_calls.AskLease
    ) -> LeaseGrant | GrantEvaluation | HoldBack | Finish:
        deadline = time.monotonic() + call.poll_secs
        with self._changed:
            deaths = self._deaths[call.explorer]
            while True:
                if self._deaths[call.explorer] != deaths:
                    return HoldBack("the end of a dead explorer")  # Nobody hears the answer.
                request = LeaseRequested(
                    call.explorer,
                    time.monotonic(),
                    call.unfinished,
                    room=call.room,
                    version=call.version,
                    request=call.request,
                    evaluating=call.evaluating,
                )
                (answer,) = self._apply(request)
                left = deadline - time.monotonic()
                if isinstance(answer, GrantLeases):
                    return self._granted(answer)
                if not isinstance(answer, HoldBack):
                    return answer
                if left <= 0:
                    trainer = self._board.role(TRAINER)
                    return answer._replace(trainer_step=trainer.step if trainer else None)
                self._changed.wait(left)

    def _granted(self, grant: GrantLeases) -> LeaseGrant:
        """Returns a grant with the prompts of its leases."""
        leases = Records[Lease]()
        for lease in grant.leases:
            prompt = self._task.train[lease.choice.prompt]
            # Under exact pulls a batch depends only on its step, not on the number of attempts.
            attempt = 0 if grant.exactly else lease.attempt
            # The rest of a row, which may be large, is in the explorer's own task.
            asked = prompt._replace(row=None)
            begun = self._kept.of(lease.ordinal) if lease.is_kept else ()
            leases.append(Lease(lease.lease_id, lease.ordinal, attempt, asked, begun))
        return LeaseGrant(grant.step, grant.version, grant.exactly, leases)

    def _judge(self, call: scoring_calls.RequestScores) -> scoring_calls.Scores:
        """Scores completions, and decides which groups to insert."""
        verdicts = self._judging.verdicts(call.items)
        groups: dict[int, list[int]] = {}
        for at, item in enumerate(call.items):
            if item.lease_id != NO_LEASE:
                groups.setdefault(item.lease_id, []).append(at)
        failed = tuple(
            one
            for lease_id, rows in groups.items()
            for one in failed_episodes(
                lease_id, call.items[rows[0]].prompt_id, [call.items[at].ending for at in rows]
            )
        )
        if not failed and not self._settings.algorithm.screening.replaces:
            return scoring_calls.Scores(verdicts, [*groups])
        judged = tuple(
            (lease_id, self._rewards([verdicts[at] for at in rows]))
            for lease_id, rows in groups.items()
        )
        (admit,) = self._apply(GroupsJudged(judged, failed))
        return scoring_calls.Scores(verdicts, [*admit.lease_ids])

    def _rewards(self, verdicts: Sequence[scoring_calls.ScoredCompletion]) -> tuple[float, ...]:
        """Returns what a group is screened by, without the greedy completion's."""
        with_baseline = self._settings.algorithm.needs_baselines
        measures = np.array(
            filter_values(*score_columns(verdicts), self._filter_weights), np.float32
        )
        rewards = filled(measures, with_baseline)[0].tolist()
        return tuple(rewards[:-1] if with_baseline else rewards)

    def _scored(self, successes: tuple[tuple[int, float], ...]) -> None:
        self._apply(GroupsScored(successes))

    def _keep_progress(self, call: master_calls.TellProgress) -> list[int]:
        """Keeps tokens of unfinished groups; groups whose leases have ended are passed over."""
        with self._changed:
            lacking, kept = self._kept.take(call.told, self._state.live)
            if kept:
                self._apply(GroupsKept(kept))
            return lacking

    def _claim(self, call: master_calls.Claim) -> list[int]:
        with self._changed:
            self._apply(GroupsBuffered(tuple(call.lease_ids)))
            return [lease_id for lease_id in call.lease_ids if lease_id not in self._state.live]

    def _buffered(self, call: master_calls.AskBuffered) -> master_calls.Buffered:
        del call
        with self._changed:
            live = self._state.live.values()
            leases = [lease.lease_id for lease in live if lease.buffered]
            return master_calls.Buffered(self._state.trained_steps, leases)

    def _batch(self, call: master_calls.AskBatch) -> GrantBatch:
        (answer,) = self._apply(BatchRequested(call.step, tuple(call.at_hand)))
        return answer

    def _happened(self, call: master_calls.Happened) -> None:
        if isinstance(call.event, ExplorerDied):
            self._attendance.lost(explorer_name(call.event.explorer))
            self._weights.explorer_died(call.event.explorer)
            with self._changed:
                self._deaths[call.event.explorer] += 1
        self._apply(call.event)
        if isinstance(call.event, SnapshotSaved) or self._journal.is_long:
            self._begin_file()

    def _trained(self, call: master_calls.Trained) -> scoring_calls.Judgements:
        with self._changed:
            before, live = self._state, self._state.live
            leases = [live[one] for one in call.event.lease_ids if one in live]
            self._apply(call.event, self._accounts.entry(call))
            if self._state is not before:
                self._count(call, leases)
            answered = self._accounts.answered
            if answered is not None and answered.step == call.event.step:
                return answered.judgements
            return self._judging.of_leases(call.recorded)

    def _count(self, call: master_calls.Trained, leases: Sequence[LiveLease]) -> None:
        """Measures a step that was just counted; see `StepAccounts.count`."""
        self._is_new_attempt = False
        self._merge(RunResult(rl=self._accounts.count(call, self._state, leases)))
        self._board.trained(call.event.step)

    def _newest(self, call: weight_calls.AskNewest) -> int:
        """Returns the newest version; waits for the one asked for, unless the run is stopping."""

        def newest() -> int:
            return -1 if self._state.newest is None else self._state.newest

        with self._changed:
            self._changed.wait_for(
                lambda: newest() >= call.at_least or self._state.stopping is not None,
                call.timeout_secs,
            )
            return newest()

    def _position(self, call: master_calls.AskPosition) -> Position:
        del call
        with self._changed:
            return transition.position(self._state)

    def _heartbeat(self, call: master_calls.Heartbeat) -> str | None:
        """Records a heartbeat; the first process of a role reports the role's status."""
        role = call.status.role
        self._attendance.heard(call.name, call.process, call.doing, time.monotonic())
        if call.name == role:
            status = call.status
            if role == TRAINER and (reward := self._accounts.reward) is not None:
                # The trainer knows only the rewards of groups that it trains on, not of all groups.
                status = dataclasses.replace(status, reward=reward)
            self._board.heard(status)
            if is_explorer(role):
                life = f"{call.name}:{call.process}"
                self._accounts.spend("explorer", life, call.spent)
                with self._changed:
                    self._seen_secs[number_of(role)] = time.monotonic()
        return self._state.stopping

    def _write_metrics(self, call: master_calls.WriteMetrics) -> None:
        self._accounts.write(call.phase, call.step, call.values)

    def _enter(self, call: master_calls.EnterPhase) -> None:
        self._board.enter(call.phase, call.message)

    def _report(self, call: master_calls.Report) -> None:
        self._merge(call.result)
        for moment, why in call.result.left_out.items():
            self._board.show(f"no evaluation {moment}: {why}")

    def _merge(self, result: RunResult) -> None:
        """Adds to the run's result."""
        with self._changed:
            self._result = self._result.updated(result)

    def _evaluated(self, measured: EvaluationResult) -> None:
        with self._changed:
            self._accounts.add_evaluation(measured.step, measured.values)
            self._show_evaluation(measured)
            self._note(measured)

    def _show_evaluation(self, measured: EvaluationResult) -> None:
        moment, _, values, best = measured
        self._merge(RunResult(evaluations={moment: values}, best=best))
        parts = accuracy.describe_parts(values)
        hint = unsolved.HINT if unsolved.is_unsolved(self._settings, moment, values) else ""
        share = accuracy.describe_share(values["accuracy"])
        self._board.show(f"held-out accuracy {moment}: {share}{parts}{hint}")

    def _status(self, call: master_calls.AskStatus) -> RunStatus:
        del call
        with self._changed:
            raised = self._accounts.alarms()
            examples = self._judging.examples() if alarms.are_of_completions(raised) else ()
            return self._board.status(self._state, raised, examples)

    def _fail(self, reason: str) -> None:
        """Stops the run as failed for this reason; the first reason counts."""
        with self._changed:
            if self._result.failed is not None:
                return
            self._board.show(reason)
            failed = RunResult(failed=reason)
            self._merge(failed)
            self._note(master_calls.Report(failed))
            self._apply(StopRequested(reason))

    def _close(self, call: master_calls.CloseLedger) -> Summary:
        del call
        with self._changed:
            if not self.closed.is_set():
                self._state, commands = transition.end(self._state)
                self._write_ledger(commands)
                self._write(lambda: self._ledger.write_balance(balance(self._state)))
                self._ledger.close()
                outcome = self._outcome()
                with contextlib.suppress(OSError):  # The record is optional.
                    record_end(self._settings.workdir, outcome)
                self._evaluations.close()
                self._pending.close()
                self._accounts.close(outcome.failed is None and outcome.stopped is None)
                self._judging.close()
                self._journal.close()
                self.closed.set()
            return Summary(self._result, balance(self._state))

    def _outcome(self) -> RunOutcome:
        return RunOutcome(
            time.time(), self._result.digest, self._result.failed, self._state.stopping
        )

    def finish(self) -> None:
        """Waits until the systems that receive metrics have the last ones."""
        self._accounts.finish()

    def _renew(self) -> None:
        """Renews the leases of the explorers that were heard since the last time, all at once.

        One event looks at all leases, so an event for each heartbeat would cost more by the square
        of the number of explorers.
        """
        with self._changed:
            seen, self._seen_secs = self._seen_secs, {}
            if seen:
                self._apply(ExplorersSeen(seen))

    def _tick(self) -> None:
        usage = UsageRecorder(Workdir(self._settings.workdir).usage / f"{MASTER}.jsonl")
        while not self.closed.wait(_TICK_SECS):
            self._attendance.ticked(time.monotonic(), _TICK_SECS)
            self._renew()
            self._apply(Ticked(time.monotonic()))
            self._commit()
            usage.look()
            self._accounts.look()
        usage.close()


def call_threads(explorers: int) -> int:
    """Returns the number of calls that the master answers at once.

    A call that waits, because its explorer is held back, occupies a thread for up to a second. If
    all threads are occupied, the trainer's reports wait for them, and heartbeats do.
    """
    return min(_MOST_THREADS, _FEWEST_THREADS + _THREADS_EACH * explorers)


def run_master(
    settings: RunSettings, address: str, recovers: bool = False, continues: bool = False
) -> None:
    """Serves as the master, at `host:port`, until it is asked to close, or terminated.

    Args:
      recovers, continues: see `MasterServer`.

    Raises:
      JournalError: see `MasterServer`.
    """
    served = MasterServer(settings, recovers, continues)
    settle()
    host, port = parts_of(address)
    server = RpcServer(
        served.answer,
        port,
        host,
        threads=call_threads(settings.explorers),
        secret=secret_of(settings.workdir),
    )
    signal.signal(signal.SIGTERM, lambda *_: served.closed.set())
    served.closed.wait()
    served.finish()
    server.close()
