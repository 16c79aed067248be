"""SFT: supervised fine-tuning on the task's own demonstrations, by the trainer itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import Retention
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.learning.rows.batching import lay_out
from rl_sync.messages.master_calls import EnterPhase, Report, WriteMetrics
from rl_sync.messages.run_result import RunResult
from rl_sync.records.spans import SpanKind
from rl_sync.roles.assembly.program_list import sft_key
from rl_sync.roles.evaluation.evaluator import Measure
from rl_sync.roles.trainer.actor import Metrics, Trainer, TrainState
from rl_sync.roles.trainer.skipped_updates import SkippedUpdates
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.task import Task
from rl_sync.types import Demonstrations


@dataclasses.dataclass
class SftPhase:
    """Runs the SFT steps.

    Attributes:
      session: the trainer's session.
      trainer: the actor.
      evaluator: measures the accuracy now and then.
      task: task with the demonstrations.
      snapshots: SFT's own snapshots; one is saved when SFT is stopped.
      before_first: called with the key of each program before its first call; see `Ahead.settle`.
    """

    session: Session
    trainer: Trainer
    evaluator: Measure
    task: Task
    snapshots: SnapshotFolder
    before_first: Callable[[Hashable], None] = lambda key: None

    def run(self, initial: Callable[[], TrainState], goes_on: bool = False) -> TrainState:
        """Takes the configured steps, and measures the accuracy now and then.

        It resumes from its snapshot, and gives the same bits: a stopped SFT, or one that is over.

        Args:
          initial: makes the state before the first step.
          goes_on: whether the run is in its RL phase, and goes on where it was from SFT's state. So
            its records stay valid.

        Raises:
          RunStoppedError: the run is being stopped; the state is saved.
        """
        settings = self.session.settings.sft
        every = settings.probe_every_steps
        skipped = SkippedUpdates(self.session, "sft")
        step, state = self._start(initial, goes_on)
        if settings.steps and not goes_on:
            self.session.call(EnterPhase("sft"))
        try:
            while step < settings.steps:
                until = min(step + every - step % every, settings.steps)
                with self.session.spans.span(SpanKind.SFT, step=step + 1) as attributes:
                    metrics: Metrics = {}
                    while step < until:
                        self.session.check()
                        state, metrics = self._take(state, step + 1, metrics)
                        skipped.watch(step + 1, metrics["skipped_updates"])
                        attributes["last_step"] = step = step + 1
                    values = {name: float(value) for name, value in metrics.items()}
                    values["skipped_updates"] = skipped.settle()
                self._probe(state, step, values)
        except (RunStoppedError, TimeoutError, RemoteError):
            self._save(state, step)  # Failures of other roles leave the state intact.
            raise
        self._save(state, step)  # A trainer that dies before its first snapshot begins here.
        return state

    def forget(self) -> None:
        """Deletes SFT's snapshot, once there is a snapshot of a later step."""
        self.session.agree("forget", self.snapshots.clear)

    def _start(self, initial: Callable[[], TrainState], goes_on: bool) -> tuple[int, TrainState]:
        """Returns the number of steps that were taken, and the state after them."""
        latest = self.session.agree("SFT snapshot", self.snapshots.newest)
        if latest is None:
            return 0, initial()
        step, state, _ = self.snapshots.load(None, self.trainer.abstract_sft_state())
        self.session.facts["step"] = step
        if not goes_on:
            self.session.resumed(0, sft_step=step)
        return step, state

    def _take(self, state: TrainState, step: int, before: Metrics) -> tuple[TrainState, Metrics]:
        """Dispatches a step, then waits for the previous one, so that few are in flight at a stop.

        Args:
          before: metrics of the previous step; empty for the first step after a probe.
        """
        drawn = self._batch(step)
        self.before_first(sft_key(drawn))
        state, metrics = self.trainer.sft_step(state, *drawn)
        if before:
            self.session.facts.update(step=step - 1, loss=float(before["loss"]))
        return state, metrics

    def _probe(self, state: TrainState, step: int, values: dict[str, float]) -> None:
        """Measures the accuracy, and reports it with the metrics of the last step."""
        self.session.facts.update(step=step, loss=values["loss"])
        problems = self.session.settings.sft.probe_problems
        probe = self.evaluator.accuracy(state.params, problems)
        values |= {f"probe_{name}": x for name, x in probe.items() if "accuracy" in name}
        self.session.call(WriteMetrics("sft", step, values))
        self.session.call(Report(RunResult(sft={"step": step, **values})))

    def _save(self, state: TrainState, step: int) -> None:
        latest = self.session.agree("SFT snapshot", self.snapshots.newest)
        if step in (0, latest):
            return
        with self.session.spans.span(SpanKind.SNAPSHOT, sft_step=step):
            self.snapshots.save(step, state, {}, Retention(1))

    def _batch(self, step: int) -> Demonstrations:
        """Returns the demonstrations of a step, which depend only on the seed and the step."""
        settings = self.session.settings
        drawn = draw(self.task, settings.sft.batch_size, [settings.seed, step])
        shards = settings.trainer_layout.batch_shards
        return lay_out(drawn, settings.trainer.batching, self.trainer.model.vision, shards)
