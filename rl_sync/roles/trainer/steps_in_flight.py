"""Trainer steps in flight: dispatched by one thread, watched and reported by others."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.cluster.session import Session
from rl_sync.learning.credit import ADVANTAGES_NAME
from rl_sync.learning.rows.batching import Batching
from rl_sync.learning.rows.row_layout import Source
from rl_sync.messages.events import BatchTrained
from rl_sync.messages.master_calls import Fail, Report, Trained
from rl_sync.messages.run_result import LogprobGap, RunResult
from rl_sync.models.placement import addressable
from rl_sync.ports.clock_port import Future
from rl_sync.records.json_lines import RecordsError
from rl_sync.records.run_totals import sizes
from rl_sync.records.spans import SpanKind
from rl_sync.roles.trainer.actor import Metrics, TrainState
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.roles.trainer.rollout_recorder import RolloutRecorder
from rl_sync.roles.trainer.rollout_writer import FIELDS, Chosen, Figures
from rl_sync.roles.trainer.skipped_updates import SkippedUpdates
from rl_sync.types import NO_LEASE, Demonstrations, Group, TrainBatch

DemonstrationsOf = Callable[[int], Demonstrations]
_ARRAYS = (ADVANTAGES_NAME, *FIELDS)
PlaceBatch = Callable[[Callable[[], TrainBatch]], TrainBatch]
_log = logging.getLogger(__name__)


class _Measured(NamedTuple):
    """The metrics of a step: numbers, and arrays over its trajectories and tokens."""

    values: dict[str, float]
    arrays: Mapping[str, Array]


class StepsInFlight:
    """Takes steps without waiting for them, so that the next batch is read while one is computed.

    Once a step's metrics are there, its span ends, and it is reported as trained, in the order of
    the steps. At most two steps are in flight: one that is computed, and the next one.

    Args:
      session: the trainer's session.
      batching: layout of batches.
      steps: compiled steps.
      place: lays out a batch, and puts it on the devices; see `BatchPlacer.place`.
      consumed: records the groups that each step consumed.
      demonstrations: returns a step's demonstrations, which it trains on together with its groups;
        None for none.
      recorder: records rollouts; None for no records.
    """

    def __init__(
        self,
        session: Session,
        batching: Batching,
        steps: CompiledSteps,
        place: PlaceBatch,
        consumed: ConsumptionRecord,
        demonstrations: DemonstrationsOf | None = None,
        recorder: RolloutRecorder | None = None,
    ):
        self._recorder = recorder
        self._session, self._batching = session, batching
        self._steps, self._place = steps, place
        self._consumed, self._demonstrations = consumed, demonstrations
        # One thread each, so that a step's span begins when the previous one has ended.
        self._watcher = session.clock.pool(1, "watcher")
        self._reporter = session.clock.pool(1, "reporter")
        self._reported: Future[None] | None = None
        self._apart: LogprobGap | None = None
        self._skipped = SkippedUpdates(session, "rl")

    def take(
        self,
        state: TrainState,
        step: int,
        groups: list[Group],
        left_out: list[int],
        kept: Sequence[int] = (),
        notes: Mapping[str, float] | None = None,
        *,
        logged: Callable[[], None] = lambda: None,
        again: bool = False,
    ) -> TrainState:
        """Dispatches a step; then waits for the report of the previous one.

        Args:
          groups: groups from which the first process lays out the batch.
          left_out, kept, notes: see `Consumed`.
          logged: waits until the batch is on disk; called before the step is reported.
          again: whether the master counts the step already, from before the trainer died.

        Raises:
          Exception: the previous step failed with this error.
        """
        sources: list[Source] = []  # Filled in the process that lays out the batch.

        def laid_out() -> TrainBatch:
            batch, source = self._batching.placed(groups)
            sources.append(source)
            if self._demonstrations is None:
                return batch
            return batch._replace(demonstrations=self._demonstrations(step))

        batch = self._place(laid_out)
        versions = [group.policy_versions[group.completion_mask] for group in groups]
        attributes = {
            "step": step,
            "leases": _leases(groups),
            "tokens": sum(map(len, versions)),
            "versions": sorted({int(v) for of in versions for v in np.unique(of)}),
            "dropped": left_out,
        }
        compiled = self._steps.of(batch)
        # Watched from before the dispatch, which on a CPU may include the computation.
        dispatched: Future[Metrics] = self._session.clock.future()
        kind = SpanKind.TRAIN_AGAIN if again else SpanKind.TRAIN
        ready = self._watcher.submit(self._watch, kind, attributes, dispatched)
        try:
            state, metrics = compiled(state, batch)
        except BaseException as error:
            dispatched.set_exception(error)
            raise
        dispatched.set_result(metrics)
        before = self._reported
        if again:
            self._reported = self._reporter.submit(self._note, step, ready)
        else:
            self._reported = self._reporter.submit(
                self._report,
                step,
                groups,
                sources,
                left_out=left_out,
                kept=kept,
                notes=notes or {},
                ready=ready,
                logged=logged,
            )
        if before is not None:
            before.result()
        return state

    def settle(self) -> None:
        """Waits until every step is computed and reported; raises the error of a failed step."""
        if self._reported is not None:
            self._reported.result()

    def _watch(
        self, kind: SpanKind, attributes: dict[str, Any], dispatched: Future[Metrics]
    ) -> _Measured:
        started = self._session.clock.now()
        with self._session.spans.span(kind, **attributes):
            metrics = dispatched.result()
            arrays = {name: metrics[name] for name in _ARRAYS if name in metrics}
            values = {name: float(metrics[name]) for name in metrics.keys() - arrays.keys()}
        # A thread that began late may find the step over.
        values["step_secs"] = max(1e-6, self._session.clock.now() - started)
        values["tokens_per_sec"] = attributes["tokens"] / values["step_secs"]
        updates = self._session.settings.optimizer.updates_per_batch
        values["staleness_max_updates"] = values["staleness_max"] * updates
        return _Measured(values, arrays)

    def _note(self, step: int, ready: Future[_Measured]) -> None:
        """Waits for a step that the master counts already."""
        ready.result()
        self._session.facts.update(step=step, version=step)

    def _report(
        self,
        step: int,
        groups: list[Group],
        sources: Sequence[Source],
        *,
        left_out: list[int],
        kept: Sequence[int],
        notes: Mapping[str, float],
        ready: Future[_Measured],
        logged: Callable[[], None],
    ) -> None:
        chosen = self._recorder.choose(groups) if self._recorder else []
        values, arrays = ready.result()
        with self._session.spans.span(SpanKind.REPORT, step=step):
            values |= sizes(groups) | {**notes}
            at_end = int(values.pop("skipped_at_end"))
            self._session.facts.update(
                step=step,
                version=step,
                reward=values["reward_mean"] if math.isfinite(values["reward_mean"]) else None,
                tokens_per_sec=values["tokens_per_sec"],
                staleness=values["staleness_mean"],
            )
            logged()
            try:
                # Written first: a line of a step that the master does not count becomes void.
                self._consumed.write(step, groups)
            except RecordsError as error:
                self._session.tell(Fail(str(error)))
            leases = tuple(_leases(groups))
            trained = BatchTrained(step, leases, tuple(left_out), tuple(kept))
            recorded = [group.lease_id for _, group in chosen]
            judgements = self._session.tell(
                Trained(trained, values, self._session.spans.spent, recorded)
            )
            if "logprob_gap" in values:
                self._compare(step, values["logprob_gap"])
            updates = self._session.settings.optimizer.updates_per_batch
            self._skipped.count(step, int(values["skipped_updates"]), at_end, updates)
            self._skipped.count_unjudged(step, int(values["unjudged_updates"]))
            if self._recorder and chosen:
                figures = functools.partial(self._figures, arrays, sources)
                self._recorder.record(step, Chosen(chosen, judgements), figures)

    def _figures(self, arrays: Mapping[str, Array], sources: Sequence[Source]) -> Figures:
        """Reads the per-token values of a step from this process's devices."""
        advantages = arrays.get(ADVANTAGES_NAME)
        return Figures(
            advantages=None if advantages is None else np.asarray(advantages),
            of_tokens={name: addressable(arrays[name]) for name in FIELDS if name in arrays},
            source=sources[0] if sources else None,
            row_tokens=self._batching.row_tokens,
        )

    def _compare(self, step: int, gap: float) -> None:
        """Raises the alarm if trainer and explorers disagree on the logprobs of tokens."""
        limit = self._session.settings.algorithm.logprob_gap_alarm
        if not limit or not gap > limit:
            return
        _log.warning(
            "Trainer step %d: the logprobs that the trainer and the explorers give to the same"
            " tokens differ by %.3f nats on average, more than algorithm.logprob_gap_alarm=%g.",
            step,
            gap,
            limit,
        )
        before = self._apart or LogprobGap(step, 0, 0.0, limit)
        greatest = max(before.greatest, gap)
        self._apart = before._replace(steps=before.steps + 1, greatest=greatest)
        self._session.tell(Report(RunResult(logprob_gap=self._apart)))


def _leases(groups: list[Group]) -> list[int]:
    """Returns the lease ids of groups that were generated for a lease."""
    return [group.lease_id for group in groups if group.lease_id != NO_LEASE]
