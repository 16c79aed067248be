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
    """Compiles in the background, and keeps what it has compiled.

    Args:
      session: the trainer's.
      trainer: the actor.
      state: of the shapes of all states to come; may be what `Trainer.like` returns.
      threads: threads that compile.
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
        """Begins to compile for batches of one shape, unless that was begun before."""
        shape = _shape(batch)
        if shape not in self._steps:
            self._steps[shape] = self._compiler.submit(self._compile, batch)

    def of(self, batch: TrainBatch) -> Step:
        """The step for a batch; waits for it where it is not compiled yet.

        Raises:
          RunStoppedError: the run is being stopped meanwhile.
        """
        self.prepare(batch)
        shape = _shape(batch)
        if shape not in self._awaited:
            if self._steps[shape].cancel():  # It would wait for others that nobody needs yet.
                self._steps[shape] = self._urgent.submit(self._compile, batch)
            # The first process decides for all of a team whether they go on.
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
