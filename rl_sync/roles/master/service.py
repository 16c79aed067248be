"""The master's server: the master actor behind remote calls, with its ledger and scoring."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_sync.algorithms.screening import FAULTS
from rl_sync.checkpoints.ledger import Ledger, balance
from rl_sync.cluster import master_calls, scoring_calls, weight_calls
from rl_sync.cluster.heartbeats import Heartbeats
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.pending import PendingCalls
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.cluster.run_result import RunResult, Summary
from rl_sync.cluster.secret import secret_of
from rl_sync.display.live import RoleStatus, RunStatus
from rl_sync.isolation.codec import Records
from rl_sync.records import accuracy, alarms
from rl_sync.records.json_lines import RecordsError
from rl_sync.records.metrics import measured, read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.records.run_outcome import RunOutcome, record_end, record_start
from rl_sync.records.run_totals import Pace, RunTotals
from rl_sync.records.usage import UsageRecorder
from rl_sync.role_names import MASTER, TRAINER, explorer_name, is_explorer, number_of
from rl_sync.roles import wiring
from rl_sync.roles.master import prompt_choice, transition, unsolved
from rl_sync.roles.master.evaluations import EvaluationResult, Evaluations
from rl_sync.roles.master.events import (
    LEFT_OUT,
    Event,
    ExplorerDied,
    ExplorerSeen,
    Finish,
    GrantEvaluation,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsScored,
    HoldBack,
    LeaseRequested,
    LiveLease,
    Position,
    Record,
    Started,
    StopRequested,
    Ticked,
)
from rl_sync.roles.master.group_admission import failed_episodes, filled
from rl_sync.roles.master.weight_registry import WeightRegistry
from rl_sync.settings.run_settings import RunSettings
from rl_sync.types import NO_LEASE, Lease
from rl_sync.workdir import Workdir

_TICK_SECS = 0.5
_PENDING_CALLS = 64  # Calls in progress at once, in threads that mostly wait.
_SFT, _RL = "sft", "rl"
_NOT_SELECTED = frozenset((*FAULTS, LEFT_OUT))
"""Reasons for dropping groups because of their rewards; these groups count in a step's metrics."""


class MasterServer:
    """Answers the other roles' calls.

    Args:
      settings: settings of the run.

    Attributes:
      answer: answers a call of any kind in `rl_sync.cluster.master_calls`.
      closed: whether the ledger is closed.
    """

    def __init__(self, settings: RunSettings):
        self._settings = settings
        self._task = wiring.load_task(settings)
        self._changed = threading.Condition()
        self._state = transition.MasterState(
            wiring.master_settings(settings, wiring.prompt_pool(settings, self._task))
        )
        self._weights = WeightRegistry(settings.sync.fanout)
        self._ledger = Ledger(settings.workdir)
        with contextlib.suppress(OSError):  # The record is optional.
            record_start(settings.workdir)
        observe = settings.observe
        self._metrics = MetricsWriter(settings.workdir, observe.chosen_backends, observe.labels)
        self._progress = RunTotals(settings.workdir)
        self._watch = alarms.Watch(settings.alarm_limits)
        self._roles: dict[str, RoleStatus] = {}
        self._phase, self._message = "start", ""
        self._result = RunResult()
        self._first_lease = 0
        self._reward: float | None = None
        self._sft_step = 0
        self._paces = {phase: Pace() for phase in (_SFT, _RL)}
        self._not_selected: list[LiveLease] = []  # Dropped for steps that are not trained yet.
        self._started = time.monotonic()
        self._attendance = Heartbeats(self._started)
        self.closed = threading.Event()
        self._judging = wiring.judging(
            settings, self._task, self._fail, self._say, scored=self._scored
        )
        self._evaluations = Evaluations(
            wiring.examination(settings, self._task),
            self._judging,
            category=settings.evaluation.category,
            metric=settings.checkpoint.best,
            workdir=Workdir(settings.workdir),
            publish=self._evaluated,
        )
        self._pending = PendingCalls(
            scoring_calls.RequestScores.answered_by(self._judge),
            master_calls.AwaitEvaluations.answered_by(lambda call: self._evaluations.wait()),
            threads=_PENDING_CALLS,
            progress=lambda: self._judging.judged + self._evaluations.judged,
            tells_failures=False,
        )
        self.answer = self._desk()
        threading.Thread(target=self._tick, name="ticks", daemon=True).start()

    def _desk(self) -> CallHandlers:
        return CallHandlers(
            master_calls.AskLease.answered_by(self._lease),
            self._pending.handler(),
            master_calls.Claim.answered_by(self._claim),
            master_calls.Happened.answered_by(self._happened),
            master_calls.AskBuffered.answered_by(self._buffered),
            master_calls.Resumed.answered_by(self._resumed),
            master_calls.AskProgress.answered_by(self._run_progress),
            master_calls.TrainerDied.answered_by(self._trainer_died),
            master_calls.TrainerReady.answered_by(self._begin),
            master_calls.Trained.answered_by(self._trained),
            master_calls.AskPosition.answered_by(self._position),
            master_calls.EnterPhase.answered_by(self._enter),
            master_calls.AskStatus.answered_by(self._status),
            master_calls.Report.answered_by(self._report),
            master_calls.HandInEvaluation.answered_by(self._evaluations.hand_in),
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
            *self._weights.handlers(),
        )

    def _apply(self, event: Event) -> tuple[Any, ...]:
        """Applies an event under the lock, writes the ledger, and returns the actor's answers."""
        with self._changed:
            self._state, commands = transition.transition(self._state, event)
            self._keep(commands)
            # Requests and heartbeats make nothing new possible. If they were announced, explorers
            # that wait for leases would keep waking each other up.
            if not isinstance(event, LeaseRequested | ExplorerSeen) and (
                commands or not isinstance(event, Ticked)
            ):
                self._changed.notify_all()
            return tuple(command for command in commands if not isinstance(command, Record))

    def _keep(self, commands: tuple[Any, ...]) -> None:
        """Writes the ledger, and forgets the scores of some dropped groups.

        These are groups that were not dropped because of their rewards: no step's metrics include
        them.
        """
        for command in commands:
            if isinstance(command, Record):
                self._write(functools.partial(self._ledger.write, command))
                if command.event != "dropped":
                    continue
                if command.reason in _NOT_SELECTED:
                    self._not_selected += command.leases
                else:
                    self._judging.forget([lease.lease_id for lease in command.leases])

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
        self._metrics.resume(call.step, call.sft_step)
        self._progress.resume()
        for line in read_metrics(self._settings.workdir):
            self._watch.take(line)
            if line["phase"] == "evaluation":
                self._add(RunResult(evaluations={self._moment(line["step"]): measured(line)}))
        self._evaluations.resume(call.step)

    def _moment(self, step: int) -> str:
        """Returns the name of an earlier evaluation, from before the run resumed."""
        if step == 0:
            return f"before {self._settings.algorithm.learning}"
        return f"after step {step}"

    def _run_progress(self, call: master_calls.AskProgress) -> master_calls.Progress | None:
        del call
        with self._changed:
            state = self._state
            if not state.begun:
                return None
            start = state.settings.schedule.start
            return master_calls.Progress(start, state.trained_steps, [*self._result.evaluations])

    def _trainer_died(self, call: master_calls.TrainerDied) -> None:
        self._attendance.lost(TRAINER)
        self._weights.trainer_died()
        self._message = call.reason

    def _begin(self, call: master_calls.TrainerReady) -> None:
        # Leases that were granted after the snapshot have used these ids.
        next_lease = max(call.position.next_lease, self._first_lease)
        self._apply(Started(call.position._replace(next_lease=next_lease)))

    def _lease(
        self, call: master_calls.AskLease
    ) -> master_calls.LeaseGrant | GrantEvaluation | HoldBack | Finish:
        deadline = time.monotonic() + call.poll_secs
        with self._changed:
            while True:
                request = LeaseRequested(
                    call.explorer, time.monotonic(), call.unfinished, call.room, call.version
                )
                (answer,) = self._apply(request)
                left = deadline - time.monotonic()
                if isinstance(answer, GrantLeases):
                    return self._granted(answer)
                if not isinstance(answer, HoldBack):
                    return answer
                if left <= 0:
                    trainer = self._roles.get(TRAINER)
                    return answer._replace(trainer_step=trainer.step if trainer else None)
                self._changed.wait(left)

    def _granted(self, grant: GrantLeases) -> master_calls.LeaseGrant:
        """Returns a grant with the prompts of its leases."""
        leases = Records[Lease]()
        for lease in grant.leases:
            prompt = self._task.train[lease.choice.prompt]
            # Under exact pulls a batch depends only on its step, not on the number of attempts.
            attempt = 0 if grant.exactly else lease.attempt
            # The rest of a row, which may be large, is in the explorer's own task.
            asked = prompt._replace(row=None)
            leases.append(Lease(lease.lease_id, lease.ordinal, attempt, asked))
        return master_calls.LeaseGrant(grant.step, grant.version, grant.exactly, leases)

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
        """Returns the rewards that the explorer will give a group, without the greedy one's."""
        with_baseline = self._settings.algorithm.needs_baselines
        scores = [math.nan if one.score is None else one.score for one in verdicts]
        rewards = filled(np.array(scores, np.float32), with_baseline)[0].tolist()
        return tuple(rewards[:-1] if with_baseline else rewards)

    def _scored(self, successes: tuple[tuple[int, float], ...]) -> None:
        self._apply(GroupsScored(successes))

    def _claim(self, call: master_calls.Claim) -> list[int]:
        with self._changed:
            self._apply(GroupsBuffered(tuple(call.lease_ids)))
            return [lease_id for lease_id in call.lease_ids if lease_id not in self._state.live]

    def _buffered(self, call: master_calls.AskBuffered) -> list[int]:
        del call
        with self._changed:
            return [lease.lease_id for lease in self._state.live.values() if lease.buffered]

    def _happened(self, call: master_calls.Happened) -> None:
        if isinstance(call.event, ExplorerDied):
            self._attendance.lost(explorer_name(call.event.explorer))
            self._weights.explorer_died(explorer_name(call.event.explorer))
        self._apply(call.event)

    def _trained(self, call: master_calls.Trained) -> scoring_calls.Judgements:
        event, judgements = call.event, self._judging.of_leases(call.recorded)
        with self._changed:
            live = self._state.live
            leases = [live[lease_id] for lease_id in event.lease_ids if lease_id in live]
            self._apply(event)
            prompts = prompt_choice.metrics(self._state, leases)
        others = self._take_not_selected(event.step)
        generated = (*event.lease_ids, *others)
        over = {*generated} - {*event.kept}
        self._progress.spend(TRAINER, TRAINER, call.spent)
        judged = self._judging.metrics(generated, over, self._settings.trainer.group_size)
        metrics = {**call.metrics, **judged, **prompts, **self._progress.step(call.metrics)}
        last = {"step": event.step, **call.metrics}
        if (mean := judged.get("reward_mean")) is not None:
            last["reward_mean"] = mean
            self._reward = mean if math.isfinite(mean) else None
            if self._settings.algorithm.selects_groups:
                selected = call.metrics["reward_mean"]
                last["selected_reward_mean"] = metrics["selected_reward_mean"] = selected
        self._metrics.write("rl", event.step, metrics)
        self._paces[_RL].note(event.step, time.monotonic())
        self._watch.add(metrics)
        self._add(RunResult(rl=last))
        return judgements

    def _take_not_selected(self, step: int) -> list[int]:
        """Returns the lease ids of groups that were generated for a step and not selected.

        Under latest pulls these are all groups that were not selected since the step before.
        """
        with self._changed:
            settings = self._state.settings
            exact = settings.schedule.pull == "exact"
            of_step = [
                lease
                for lease in self._not_selected
                if not exact or settings.step_of(lease.ordinal) == step
            ]
            self._not_selected = [one for one in self._not_selected if one not in of_step]
        return [lease.lease_id for lease in of_step]

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
            if role == TRAINER and self._reward is not None:
                # The trainer knows only the rewards of groups that it trains on, not of all groups.
                status = dataclasses.replace(status, reward=self._reward)
            self._roles[role] = status
            if is_explorer(role):
                life = f"{call.name}:{call.process}"
                self._progress.spend("explorer", life, call.spent)
                self._apply(ExplorerSeen(number_of(role), time.monotonic()))
        return self._state.stopping

    def _write_metrics(self, call: master_calls.WriteMetrics) -> None:
        self._metrics.write(call.phase, call.step, call.values)

    def _enter(self, call: master_calls.EnterPhase) -> None:
        self._phase, self._message = call.phase, call.message or self._message

    def _report(self, call: master_calls.Report) -> None:
        self._add(call.result)

    def _add(self, result: RunResult) -> None:
        """Adds to the run's result."""
        with self._changed:
            self._result = self._result.updated(result)

    def _say(self, message: str) -> None:
        """Shows a line on the display."""
        self._message = message

    def _evaluated(self, measured: EvaluationResult) -> None:
        moment, step, values, best = measured
        self._metrics.write("evaluation", step, values)
        with self._changed:
            self._watch.add_evaluation(step, values)
        self._add(RunResult(evaluations={moment: values}, best=best))
        parts = accuracy.describe_parts(values)
        hint = unsolved.HINT if unsolved.is_unsolved(self._settings, moment, values) else ""
        share = accuracy.describe_share(values["accuracy"])
        self._message = f"held-out accuracy {moment}: {share}{parts}{hint}"

    def _status(self, call: master_calls.AskStatus) -> RunStatus:
        del call
        settings, now = self._settings, time.monotonic()
        with self._changed:
            raised = tuple(alarms.raised(self._watch.evidence()))
            step, steps, loss = self._state.trained_steps, settings.trainer.steps, None
            if self._phase == _SFT:
                if (trainer := self._roles.get(TRAINER)) is not None:
                    # The evaluation at the end of SFT has step 0, like the evaluations before RL.
                    self._sft_step = max(self._sft_step, trainer.step or 0)
                    self._paces[_SFT].note(self._sft_step, now)
                    loss = trainer.loss
                step, steps = self._sft_step, settings.sft.steps
            pace = self._paces.get(self._phase)
            return RunStatus(
                phase=self._phase,
                step=step,
                steps=steps,
                roles=tuple(self._roles[role] for role in settings.roles if role in self._roles),
                buffer_size=self._state.buffered,
                buffer_capacity=settings.groups_ahead,
                elapsed_secs=now - self._started,
                left_secs=pace.left_secs(steps, now) if pace and step < steps else None,
                message=self._message,
                loss=loss,
                alarms=raised,
                examples=self._judging.examples() if alarms.are_of_completions(raised) else (),
            )

    def _fail(self, reason: str) -> None:
        """Stops the run as failed for this reason; the first reason counts."""
        with self._changed:
            if self._result.failed is not None:
                return
            self._message = reason
            self._add(RunResult(failed=reason))
            self._apply(StopRequested(reason))

    def _close(self, call: master_calls.CloseLedger) -> Summary:
        del call
        with self._changed:
            if not self.closed.is_set():
                self._state, commands = transition.end(self._state)
                self._keep(commands)
                self._write(lambda: self._ledger.write_balance(self._state))
                self._ledger.close()
                outcome = self._outcome()
                with contextlib.suppress(OSError):  # The record is optional.
                    record_end(self._settings.workdir, outcome)
                self._evaluations.close()
                self._pending.close()
                self._metrics.close(outcome.failed is None and outcome.stopped is None)
                self._judging.close()
                self.closed.set()
            return Summary(self._result, balance(self._state))

    def _outcome(self) -> RunOutcome:
        return RunOutcome(
            time.time(), self._result.digest, self._result.failed, self._state.stopping
        )

    def finish(self) -> None:
        """Waits until the systems that receive metrics have the last ones."""
        self._metrics.close(is_well=False)  # Has no effect once the ledger is closed.
        self._metrics.wait(self._settings.observe.finish_secs)

    def _tick(self) -> None:
        usage = UsageRecorder(Workdir(self._settings.workdir).usage / f"{MASTER}.jsonl")
        while not self.closed.wait(_TICK_SECS):
            self._attendance.ticked(time.monotonic(), _TICK_SECS)
            self._apply(Ticked(time.monotonic()))
            usage.look()
        usage.close()


def run_master(settings: RunSettings, address: str) -> None:
    """Serves as the master, at `host:port`, until it is asked to close, or terminated."""
    served = MasterServer(settings)
    settle()
    host, _, port = address.rpartition(":")
    server = RpcServer(served.answer, int(port), host, secret=secret_of(settings.workdir))
    signal.signal(signal.SIGTERM, lambda *_: served.closed.set())
    served.closed.wait()
    served.finish()
    server.close()
