"""Running totals of a run: tokens and time so far."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from rl_sync.records.metrics import read_metrics
from rl_sync.types import Group

NUM_TOKENS = "num_tokens"
WEIGHTS = "weights/"
"""Beginning of the names of totals about the transfer of weights."""
DRAFTS = "drafts/"
"""Beginning of the names of totals about drafted tokens."""
_SAMPLED, _ACCEPTED = f"{DRAFTS}sampled_tokens", f"{DRAFTS}accepted_tokens"
_ELEMENTS, _CHANGED = f"{WEIGHTS}elements", f"{WEIGHTS}changed_elements"
_PACED = 20
_LEAST_PACED = 3


def draft_counts(*, sampled: int, drafted: int, accepted: int) -> dict[str, float]:
    """Names an explorer's numbers of sampled, drafted and accepted tokens, to be counted."""
    return {_SAMPLED: sampled, f"{DRAFTS}drafted_tokens": drafted, _ACCEPTED: accepted}


def install_counts(*, installs: int, install_secs: float, paused_secs: float) -> dict[str, float]:
    """Names what an explorer counted of versions that its served engine was given."""
    return {
        f"{WEIGHTS}engine_installs": installs,
        f"{WEIGHTS}engine_install_secs": install_secs,
        f"{WEIGHTS}engine_paused_secs": paused_secs,
    }


def sizes(groups: Sequence[Group]) -> dict[str, float]:
    """Measures the prompts of a batch, and counts the tokens of its rows."""
    prompts: list[int] = []
    tokens = 0
    for group in groups:
        drawn = group.policy_versions >= 0
        any_drawn, width = drawn.any(axis=1), drawn.shape[1]
        prompts += [int(first) for first in drawn.argmax(axis=1)[any_drawn]]
        tokens += int((width - drawn[:, ::-1].argmax(axis=1))[any_drawn].sum())
    return {
        "prompt_tokens_mean": float(np.mean(prompts)) if prompts else 0.0,
        "prompt_tokens_max": float(max(prompts, default=0)),
        NUM_TOKENS: float(tokens),
    }


class Pace:
    """Estimates the remaining time of a phase from the times of its last steps."""

    def __init__(self) -> None:
        self._times: collections.deque[tuple[int, float]] = collections.deque(maxlen=_PACED)

    def note(self, step: int, now_secs: float) -> None:
        """Records that a step is finished; a step that was recorded before is ignored."""
        if not self._times or step > self._times[-1][0]:
            self._times.append((step, now_secs))

    def left_secs(self, steps: int, now_secs: float) -> float | None:
        """Returns the seconds until step `steps`; None with fewer than three recorded steps.

        The first recorded step may include compilation, so its time does not count.
        """
        if len(self._times) < _LEAST_PACED:
            return None
        (first, began), (last, ended) = self._times[0], self._times[-1]
        each = (ended - began) / (last - first)
        return max(0.0, (steps - last) * each - (now_secs - ended))


class RunTotals:
    """Totals over a run, which continue when the run resumes.

    Args:
      workdir: the run's directory.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir
        self._lock = threading.Lock()
        self._tokens = 0.0
        self._spent: dict[str, dict[str, float]] = {}
        self._told: dict[str, float] = {}

    def resume(self) -> None:
        """Restores the totals of earlier steps; the metrics already have the mark."""
        lines = read_metrics(self._workdir, "rl")
        self._tokens = float(lines[-1].get(NUM_TOKENS, 0.0)) if lines else 0.0

    @property
    def tokens(self) -> float:
        """Number of tokens so far."""
        return self._tokens

    @property
    def spent(self) -> dict[str, dict[str, float]]:
        """Returns the seconds that each process of a role has spent so far, by names of totals."""
        with self._lock:
            return {name: {**of} for name, of in self._spent.items()}

    @property
    def told(self) -> dict[str, float]:
        """Totals at the last step."""
        return {**self._told}

    def recall(self, tokens: float, told: Mapping[str, float]) -> None:
        """Continues after the last step that an earlier master has measured."""
        self._tokens, self._told = tokens, {**told}

    def recall_spent(self, spent: Mapping[str, Mapping[str, float]]) -> None:
        """Takes what each process has spent, as an earlier master knew it."""
        with self._lock:
            self._spent = {name: {**of} for name, of in spent.items()}

    def spend(self, role: str, life: str, spent: Mapping[str, float]) -> None:
        """Records what a role has spent since its process began; see `SpanRecorder.spent`.

        Args:
          life: name of the process.
        """
        with self._lock:
            for phase, secs in spent.items():
                is_time = not phase.startswith((WEIGHTS, DRAFTS))
                name = f"time/{role}/{phase}" if is_time else phase
                self._spent.setdefault(name, {})[life] = secs

    def step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the totals up to a step, and what was spent since the previous step.

        Args:
          metrics: metrics of the step, with its number of tokens.
        """
        self._tokens += metrics.get(NUM_TOKENS, 0.0)
        with self._lock:
            totals = {name: sum(of.values()) for name, of in self._spent.items()}
        spent = {name: total - self._told.get(name, 0.0) for name, total in totals.items()}
        self._told = totals
        if elements := spent.pop(_ELEMENTS, 0.0):
            spent[f"{WEIGHTS}changed_share"] = spent.pop(_CHANGED, 0.0) / elements
        spent.pop(_CHANGED, None)
        if sampled := spent.pop(_SAMPLED, 0.0):
            spent[f"{DRAFTS}tokens_a_step"] = sampled / (sampled - spent[_ACCEPTED])
        return {NUM_TOKENS: self._tokens, **spent}
