"""Skipped updates: they are counted and reported, and too many non-finite ones stop the run."""

from __future__ import annotations

import logging
from collections import deque

from jaxtyping import Array, Float

from rl_sync.cluster.session import Session
from rl_sync.messages.master_calls import Fail, Report
from rl_sync.messages.run_result import RunResult, Skipped

_log = logging.getLogger(__name__)
_AHEAD = 2
UNJUDGED = "unjudged"
"""Name of RL updates whose batch had no scored completion."""
PHASES = {"sft": "SFT step", "rl": "trainer step"}
"""Names of a phase's steps, by the phase's name in the metrics."""


def why_unjudged(has_pipeline: bool) -> str:
    """Returns the reason why updates had no completion to train on.

    Args:
      has_pipeline: whether the user's functions may have left completions out.
    """
    none = "none of their completions could be judged"
    if not has_pipeline:
        return f"{none}: judgements/ says why"
    return (
        f"{none}, or experience.pipeline left out those that were: see judgements/, and"
        " pipeline/left_out in metrics.jsonl"
    )


class SkippedUpdates:
    """Counts the skipped updates of one phase of a run.

    The first skipped update in a row is logged. After `optimizer.max_skipped_updates` in a row the
    run is stopped, as if by the user, with the parameters of the last update that was taken.

    Args:
      session: the trainer's session.
      phase: a key of `PHASES`.
    """

    def __init__(self, session: Session, phase: str):
        self._session, self._phase = session, phase
        self._row, self._since = 0, 0
        self._found: Skipped | None = None
        self._unjudged: Skipped | None = None
        self._dispatched: deque[tuple[int, Float[Array, ""]]] = deque()

    def count(self, step: int, skipped: int, at_end: int, updates: int) -> None:
        """Counts the skipped updates of a step.

        Args:
          step: step of the phase.
          skipped: number of its skipped updates.
          at_end: number of skipped updates in a row at its end.
          updates: number of its updates.
        """
        if not skipped:
            self._row = 0
            return
        what = PHASES[self._phase]
        before = self._row if skipped == updates else 0
        self._row = before + at_end
        if not before:
            self._since = step
            _log.warning(
                "%s %d: %d of %d updates were skipped, because they are not finite.",
                what.capitalize(),
                step,
                skipped,
                updates,
            )
        found = self._found or Skipped(0, step, step)
        self._found = found._replace(updates=found.updates + skipped, last_step=step)
        self._session.tell(Report(RunResult(skipped={self._phase: self._found})))
        if self._row >= self._session.settings.optimizer.max_skipped_updates:
            self._session.tell(Fail(self._reason(step)))

    def count_unjudged(self, step: int, updates: int) -> None:
        """Counts the updates of a step that were not taken, because no completion was scored."""
        if updates:
            if self._unjudged is None or self._unjudged.last_step < step - 1:
                has_pipeline = self._session.settings.experience.pipeline is not None
                _log.warning(
                    "%s %d: %d updates were not taken, because %s.",
                    PHASES[self._phase].capitalize(),
                    step,
                    updates,
                    why_unjudged(has_pipeline),
                )
            found = self._unjudged or Skipped(0, step, step)
            self._unjudged = found._replace(updates=found.updates + updates, last_step=step)
            self._session.tell(Report(RunResult(skipped={UNJUDGED: self._unjudged})))

    def watch(self, step: int, skipped: Float[Array, ""]) -> None:
        """Counts a step of one update, but only some steps later, so that nothing waits for it."""
        self._dispatched.append((step, skipped))
        self._look(_AHEAD)

    def settle(self) -> int:
        """Counts all watched steps; returns the number of skipped updates so far."""
        self._look(0)
        return self._found.updates if self._found else 0

    def _look(self, ahead: int) -> None:
        while len(self._dispatched) > ahead:
            step, metric = self._dispatched.popleft()
            skipped = int(metric)
            self.count(step, skipped, skipped, updates=1)

    def _reason(self, step: int) -> str:
        rate = "optimizer.learning_rate" if self._phase == "rl" else "sft.learning_rate"
        steps = f"from {PHASES[self._phase]} {self._since} to {step}"
        settings = self._session.settings
        most = settings.optimizer.max_skipped_updates
        wider = ""
        if settings.compute_dtype == "float16":
            wider = " or trainer.compute_dtype=float32, as float16 has no values beyond 65,504"
        return (
            f"{self._row} updates in a row, {steps}, had a loss or a gradient that is NaN or"
            f" infinite (optimizer.max_skipped_updates={most}). They were skipped, so the"
            " parameters are those from before. Look at the last finite values in metrics.jsonl,"
            f" and resume with a lower {rate}{wider}, which needs launch.resume_changed=true."
        )
