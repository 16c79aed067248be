"""The master's evaluations: scored during the run, measured once, and compared for the best."""

from __future__ import annotations

import concurrent.futures
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from rl_sync.checkpoints.best_snapshot import read_best, write_best
from rl_sync.messages.master_calls import HandInEvaluation, HandInMeasured
from rl_sync.messages.run_result import Best
from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.roles.evaluation.evaluator import EvaluationResults, EvaluationSet
from rl_sync.scoring.judging import MasterScoring
from rl_sync.workdir import Workdir


class EvaluationResult(NamedTuple):
    """A measured evaluation.

    Attributes:
      moment, step: see `HandInEvaluation`.
      values: see `rl_sync.records.accuracy.measure`.
      best: best snapshot so far, including this one; None if none is kept.
    """

    moment: str
    step: int
    values: dict[str, float]
    best: Best | None


class Evaluations:
    """Scores the completions of evaluations, one evaluation after the other.

    Args:
      examination: the problems of an evaluation.
      judging: scores completions.
      category: field of a row that names a problem's category.
      metric: metric that chooses the best snapshot; None to keep none.
      workdir: work directory, where the best snapshot is recorded.
      publish: gets each evaluation, once, when all its completions are scored.

    Attributes:
      judged: number of completions that were scored so far.
    """

    def __init__(
        self,
        examination: EvaluationSet,
        judging: MasterScoring,
        *,
        category: str,
        metric: str | None,
        workdir: Workdir,
        publish: Callable[[EvaluationResult], None],
    ) -> None:
        self._examination, self._judging, self._category = examination, judging, category
        self._metric, self._workdir, self._publish = metric, workdir, publish
        self._best = read_best(workdir) if metric else None
        self._changed = threading.Condition()
        self._sheets: dict[str, EvaluationResults] = {}
        self._pending: dict[str, int] = {}
        self._handed: list[HandInEvaluation] = []
        self._lost_secs: dict[str, float] = {}
        self._measured: set[str] = set()
        self.judged, self._is_over = 0, False
        # One thread, so that results come in the order of the evaluations.
        self._desk = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="evaluations")

    @property
    def kept(self) -> list[int]:
        """Steps whose snapshots must be kept: the best, and any that may become the best."""
        with self._changed:
            best = [] if self._best is None else [self._best.step]
            return sorted({*best, *self._pending.values()})

    def resume(self, step: int) -> None:
        """Forgets a best snapshot of a later step, because the run resumes from an earlier one."""
        with self._changed:
            if self._best is not None and self._best.step > step:
                self._best = None

    @property
    def handed(self) -> tuple[HandInEvaluation, ...]:
        """Completions that are being scored."""
        with self._changed:
            return tuple(self._handed)

    @property
    def measured(self) -> tuple[str, ...]:
        """Moments of the evaluations that are measured."""
        with self._changed:
            return tuple(sorted(self._measured))

    def recall(self, moment: str) -> None:
        """Takes an evaluation as measured, as an earlier master has measured it."""
        with self._changed:
            self._measured.add(moment)

    def hand_in(self, call: HandInEvaluation) -> None:
        """Starts to score the completions that were not submitted before."""
        with self._changed:
            if call.moment in self._measured:
                return
            made = EvaluationResults(self._examination, self._category)
            sheet = self._sheets.setdefault(call.moment, made)
            items = sheet.new(call.items)
            if call.lost_secs is not None:
                self._lost_secs[call.moment] = call.lost_secs
            if items:
                self._pending[call.moment] = call.step
                self._handed.append(call)
                self._desk.submit(self._take, call.moment, call.step, items)

    def publish(self, call: HandInMeasured) -> None:
        """Publishes an evaluation that is measured already."""
        moment, step, values = call.moment, call.step, call.values
        with self._changed:
            if moment in self._measured:
                return
        self._publish(EvaluationResult(moment, step, values, self._compared(step, values)))
        self.recall(moment)

    def wait(self) -> None:
        """Waits until no evaluation is being scored, or `close` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or not self._pending)

    def close(self) -> None:
        """Stops scoring; evaluations in progress are not measured."""
        self._desk.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _take(self, moment: str, step: int, items: list[CompletionToScore]) -> None:
        judged = self._judging.judgements(items)  # If it fails, the run is being stopped.
        with self._changed:
            sheet = self._sheets[moment]
            for item, one in zip(items, judged, strict=True):
                sheet.add(item, one, self._judging.first_score(one))
            self.judged += len(items)
            if not sheet.is_complete:
                return
        values = sheet.measure()
        if (lost_secs := self._lost_secs.get(moment)) is not None:
            values["rollouts_lost_secs"] = round(lost_secs, 3)
        self._publish(EvaluationResult(moment, step, values, self._compared(step, values)))
        with self._changed:
            sheet.forget()
            self._measured.add(moment)
            self._handed = [one for one in self._handed if one.moment != moment]
            self._pending.pop(moment, None)
            self._changed.notify_all()

    def _compared(self, step: int, values: dict[str, float]) -> Best | None:
        """Returns the best snapshot so far; the policy before the first step does not count."""
        if self._metric is None or not step:
            return self._best
        found = Best(step, self._metric, values.get(self._metric, math.nan))
        if math.isnan(found.value):  # Nothing could be scored, or the reward extracts no answers.
            return self._best
        if self._best is None or found.value > self._best.value:
            write_best(self._workdir, found)
            with self._changed:
                self._best = found
        return self._best
