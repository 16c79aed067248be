"""The master's accounts of steps: metrics, totals, alarms, and scores that no step has used yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.algorithms.screening import FAULTS
from rl_sync.messages.events import LEFT_OUT, LiveLease, Record
from rl_sync.messages.master_calls import Resumed, Trained
from rl_sync.messages.run_status import Alarm
from rl_sync.records import alarms
from rl_sync.records.lost_time import LostTimeWatch, RestartLines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.records.outages import LostTime
from rl_sync.records.run_totals import RunTotals
from rl_sync.records.span_reader import SpanLines
from rl_sync.role_names import TRAINER
from rl_sync.roles.master import prompt_choice
from rl_sync.roles.master.server_memory import AccountsMemory, Answered, CountedStep
from rl_sync.roles.master.state import MasterState
from rl_sync.scoring.judging import MasterScoring
from rl_sync.settings.run_settings import RunSettings

_RL, _EVALUATION = "rl", "evaluation"
_NOT_SELECTED = frozenset((*FAULTS, LEFT_OUT))
"""Reasons for dropping groups because of their rewards; these groups count in a step's metrics."""


class StepAccounts:
    """Measures the steps of a run; callers hold the master's lock, except for `look`.

    Args:
      settings: settings of the run.
      judging: scores of completions.
      memory: content at the beginning.

    Attributes:
      reward: mean reward of the last step; None if there is none.
      answered: answer to the trainer's last report.
    """

    def __init__(self, settings: RunSettings, judging: MasterScoring, memory: AccountsMemory):
        self._settings, self._judging = settings, judging
        observe = settings.observe
        self._metrics = MetricsWriter(settings.workdir, observe.chosen_backends, observe.labels)
        self._totals = RunTotals(settings.workdir)
        self._totals.recall(memory.tokens, memory.told)
        self._totals.recall_spent(memory.spent)
        self._watch = alarms.Watch(settings.alarm_limits)
        restarts, spans = RestartLines(settings.workdir), SpanLines(settings.workdir, whole=False)
        self._lost_watch, self._lost = LostTimeWatch(restarts, spans), LostTime()
        # Dropped for steps that are not trained yet.
        self._not_selected = [*memory.not_selected]
        self.reward, self.answered = memory.reward, memory.answered
        self._written = set[tuple[str, int]]()  # Metrics of an earlier master, by phase and step.

    def memory(self) -> AccountsMemory:
        """Returns the content, from which other accounts can begin."""
        return AccountsMemory(
            reward=self.reward,
            not_selected=tuple(self._not_selected),
            tokens=self._totals.tokens,
            told=self._totals.told,
            spent=self._totals.spent,
            answered=self.answered,
        )

    def recall(self) -> None:
        """Takes over the metrics that an earlier master has written."""
        lines = read_metrics(self._settings.workdir)
        self._written = {(line["phase"], line["step"]) for line in lines}
        for line in lines:
            self._watch.take(line)

    def resume(self, call: Resumed) -> list[dict[str, Any]]:
        """Forgets the metrics of steps after a snapshot; returns the lines of earlier ones."""
        self._metrics.resume(call.step, call.sft_step)
        self._written = set()
        self._totals.resume()
        lines = read_metrics(self._settings.workdir)
        for line in lines:
            self._watch.take(line)
        return lines

    def look(self) -> None:
        """Computes the time that the run has lost so far; callers need no lock."""
        self._lost_watch.refresh()
        self._lost = self._lost_watch.now()

    def spend(self, role: str, life: str, spent: Mapping[str, float]) -> None:
        """Records what a process has spent; see `RunTotals.spend`."""
        self._totals.spend(role, life, spent)

    def entry(self, call: Trained) -> CountedStep:
        """Returns the journal's entry of a step that is counted now."""
        self._totals.spend(TRAINER, TRAINER, call.spent)
        return CountedStep(call, self._totals.spent)

    def recall_spent(self, step: CountedStep) -> None:
        """Takes what processes had spent when an earlier master counted a step."""
        self._totals.recall_spent(step.spent)

    def forget_scores(self, records: Sequence[Record]) -> None:
        """Forgets the scores of groups that were not dropped because of their rewards.

        No step's metrics include them.
        """
        for record in records:
            if record.event != "dropped":
                continue
            if record.reason in _NOT_SELECTED:
                self._not_selected += record.leases
            else:
                self._judging.forget([lease.lease_id for lease in record.leases])

    def count(
        self, call: Trained, state: MasterState, leases: Sequence[LiveLease]
    ) -> dict[str, float]:
        """Measures a step that was just counted, and keeps the answer to its report.

        Args:
          state: state after the step.
          leases: leases of the step's groups, as they were before it.

        Returns:
          The metrics that the run's result shows.
        """
        event = call.event
        self.answered = Answered(event.step, self._judging.of_leases(call.recorded))
        generated = (*event.lease_ids, *self._take_not_selected(state, event.step))
        over = {*generated} - {*event.kept}
        judged = self._judging.metrics(generated, over, self._settings.trainer.group_size)
        prompts = prompt_choice.metrics(state, leases)
        metrics = {**call.metrics, **judged, **prompts, **self._totals.step(call.metrics)}
        metrics |= self._lost.metrics()
        last = {"step": event.step, **call.metrics}
        if (mean := judged.get("reward_mean")) is not None:
            last["reward_mean"] = mean
            self.reward = mean if math.isfinite(mean) else None
            if self._settings.algorithm.selects_groups:
                selected = call.metrics["reward_mean"]
                last["selected_reward_mean"] = metrics["selected_reward_mean"] = selected
        if self.write(_RL, event.step, metrics):
            self._watch.add(metrics)
        return last

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> bool:
        """Writes metrics, unless an earlier master has; says whether it has written them."""
        if (phase, step) in self._written:
            return False
        self._metrics.write(phase, step, values)
        return True

    def add_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of an evaluation."""
        if self.write(_EVALUATION, step, values):
            self._watch.add_evaluation(step, values)

    def alarms(self) -> tuple[Alarm, ...]:
        """Returns the alarms that hold now."""
        return tuple(alarms.raised(self._watch.evidence()))

    def close(self, is_well: bool) -> None:
        """Closes the metrics; see `MetricsWriter.close`."""
        self._metrics.close(is_well)

    def finish(self) -> None:
        """Waits until the systems that receive metrics have the last ones."""
        self._metrics.close(is_well=False)  # Has no effect once the ledger is closed.
        self._metrics.wait(self._settings.observe.finish_secs)

    def _take_not_selected(self, state: MasterState, step: int) -> list[int]:
        """Returns the lease ids of groups that were generated for a step and not selected.

        Under latest pulls these are all groups that were not selected since the step before.
        """
        settings = state.settings
        exact = settings.schedule.pull == "exact"
        of_step = [
            lease
            for lease in self._not_selected
            if not exact or settings.step_of(lease.ordinal) == step
        ]
        self._not_selected = [one for one in self._not_selected if one not in of_step]
        return [lease.lease_id for lease in of_step]
