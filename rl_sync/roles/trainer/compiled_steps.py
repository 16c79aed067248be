"""The trainer's step, compiled once for each shape of batches."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Hashable

import jax

from rl_sync.cluster.session import Session
from rl_sync.records.spans import SpanKind
from rl_sync.roles.trainer.actor import Step, Trainer, TrainState
from rl_sync.types import TrainBatch

_POLL_SECS = 0.2


class CompiledSteps:
    """Compiles steps in the background, and keeps them.

    Args:
      session: the trainer's session.
      trainer: the actor.
      state: state with the shapes of all future states; may be abstract.
      threads: number of compiling threads.
    """

    def __init__(
        self, session: Session, trainer: Trainer, state: TrainState, threads: int = 1
    ) -> None:
        self._session, self._trainer, self._state = session, trainer, state
        self._compiler = concurrent.futures.ThreadPoolExecutor(threads, "compiler")
        self._urgent = concurrent.futures.ThreadPoolExecutor(1, "urgent compiler")
        self._steps: dict[Hashable, concurrent.futures.Future[Step]] = {}
        self._awaited: set[Hashable] = set()

    def prepare(self, batch: TrainBatch) -> None:
        """Starts to compile for batches of one shape, unless that has started before."""
        shape = _shape(batch)
        if shape not in self._steps:
            self._steps[shape] = self._compiler.submit(self._compile, batch)

    def of(self, batch: TrainBatch) -> Step:
        """Returns the step for a batch; waits for its compilation if necessary.

        Raises:
          RunStoppedError: the run is being stopped.
        """
        self.prepare(batch)
        shape = _shape(batch)
        if shape not in self._awaited:
            if self._steps[shape].cancel():  # It would wait behind steps that are not needed yet.
                self._steps[shape] = self._urgent.submit(self._compile, batch)
            # The first process decides for its whole team whether the wait goes on.
            with self._session.showing(self._progress):
                self._session.agree("compiled", lambda: self._await(self._steps[shape]))
            self._awaited.add(shape)
        return self._steps[shape].result()

    def _progress(self) -> tuple[int, int]:
        steps = [*self._steps.values()]
        return sum(step.done() for step in steps), len(steps)

    def _await(self, step: concurrent.futures.Future[Step]) -> None:
        while concurrent.futures.wait([step], _POLL_SECS).not_done:
            self._session.check()

    def _compile(self, batch: TrainBatch) -> Step:
        rows, row_tokens = batch.rows.tokens.shape
        with self._session.spans.span(SpanKind.COMPILE, rows=rows, row_tokens=row_tokens):
            return self._trainer.compile_step(self._state, batch)


def _shape(batch: TrainBatch) -> Hashable:
    return tuple((leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(batch))
