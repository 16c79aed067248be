"""The warm start: supervised steps on the task's own demonstrations, by the trainer itself."""

from __future__ import annotations

import dataclasses

from rl_sync.actors.trainer import Metrics, Trainer, TrainState
from rl_sync.observe.spans import SpanKind
from rl_sync.runtime.evaluation import Evaluator
from rl_sync.runtime.session import Session
from rl_sync.runtime.skipped import SkippedUpdates
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.task import Task
from rl_sync.types import Demonstrations


@dataclasses.dataclass
class WarmUp:
    """Runs the supervised steps.

    Attributes:
      session: the trainer's part in the run.
      trainer: the actor.
      evaluator: for the accuracy on the way.
      task: where demonstrations come from.
    """

    session: Session
    trainer: Trainer
    evaluator: Evaluator
    task: Task

    def run(self, state: TrainState) -> TrainState:
        """Takes the configured steps, and measures now and then how far they have led.

        Raises:
          RunStoppedError: the run is being stopped; the warm-up is to be done again.
        """
        settings, step = self.session.settings.warm_up, 0
        skipped = SkippedUpdates(self.session, "warm_up")
        metrics: Metrics = {}
        if settings.steps:
            self.session.call("phase", phase="warm-up")
        while step < settings.steps:
            with self.session.spans.span(SpanKind.WARM_UP, step=step + 1) as attributes:
                until = min(step + settings.probe_every_steps, settings.steps)
                while step < until:
                    step += 1
                    self.session.check()
                    self.session.facts["step"] = step
                    state, metrics = self.trainer.warm_up_step(state, *self._batch(step))
                    skipped.watch(step, metrics["skipped_updates"])
                values = {name: float(value) for name, value in metrics.items()}
                values["skipped_updates"] = skipped.settle()
                attributes["last_step"] = step
            probe = self.evaluator.accuracy(state.params, settings.probe_problems)
            values |= {f"probe_{name}": x for name, x in probe.items() if "accuracy" in name}
            self.session.call("metrics", phase="warm_up", step=step, values=values)
            self.session.call("result", values={"warm_up": {"steps": step, **values}})
        return state

    def _batch(self, step: int) -> Demonstrations:
        """The demonstrations of one step; depends on the seed and the step alone."""
        settings = self.session.settings
        return draw(self.task, settings.warm_up.batch_size, [settings.seed, step])
