"""Fits of a workload to the measured times of a run: shared cores, and the cost of decoding.

On shared cores a measured time depends on who else worked meanwhile. The fits remove that, so that
a workload has the times of roles that are alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import clipped, union, union_secs
from rl_sync.role_names import TRAINER, is_explorer
from rl_sync.simulation.speed.workload import Decoding, Samples, SharedCores

_FACTORS = np.geomspace(1.0, 8.0, 40)
_KNOWN_SHARE = 0.15
_LEAST_GAIN = 0.1
"""Part of the squared deviations that a slow-down must explain, so that noise does not pass for
one."""


def _nnls(matrix: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Solves by least squares for what is not negative; returns the solution and the residual."""
    from scipy.optimize import nnls  # It takes a second, which those who read results do not have.

    return nnls(matrix, values)


class MeasuredRollout(NamedTuple):
    """The work of a rollout, and the time that it takes alone.

    Attributes:
      secs: seconds without prefills.
      steps, tokens: decode steps, and the tokens that they sampled.
    """

    secs: float
    steps: float
    tokens: float


class Occupation:
    """Numbers of roles that work at the same time, over time.

    Args:
      spans: spans of a run.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        working = (SpanKind.ROLLOUT, SpanKind.TRAIN, SpanKind.EVALUATION)
        changes: list[tuple[float, int, int]] = []
        for role in {span.role for span in spans if span.role == TRAINER or is_explorer(span.role)}:
            own = [span for span in spans if span.role == role and span.kind in working]
            trainers = int(role == TRAINER)
            for start, end in union(own):
                changes += [(start, trainers, 1 - trainers), (end, -trainers, trainers - 1)]
        changes.sort()
        self._secs = np.array([secs for secs, _, _ in changes])
        self._trainers = np.cumsum([trainers for _, trainers, _ in changes])
        self._explorers = np.cumsum([explorers for _, _, explorers in changes])

    def alone_secs(self, span: Span, shared: SharedCores | None) -> float:
        """Returns the time that a span would have taken with the cores for itself.

        Time of an evaluation beside a rollout is no part of the rollout.
        """
        beside_secs = span.attributes.get("evaluating_secs", 0.0)
        own_share = 1 - beside_secs / span.duration_secs if beside_secs else 1.0
        if shared is None:
            return span.duration_secs * own_share
        first = int(np.searchsorted(self._secs, span.start_secs, side="right"))
        last = int(np.searchsorted(self._secs, span.end_secs, side="left"))
        edges = [span.start_secs, *self._secs[first:last], span.end_secs]
        total = 0.0
        for i, (start, end) in enumerate(itertools.pairwise(edges)):
            at = first + i - 1
            total += (end - start) * shared.rate(int(self._trainers[at]), int(self._explorers[at]))
        return float(total) * own_share


class DoneWork(NamedTuple):
    """A span, and the work that was done in it.

    Attributes:
      span: the span.
      amounts: amounts of work; its time alone is about a sum of multiples of them.
    """

    span: Span
    amounts: tuple[float, ...]


def fit_shared_cores(
    least: SharedCores, done: Sequence[Sequence[DoneWork]], spans: Sequence[Span]
) -> SharedCores:
    """Finds the demand for cores with which the work explains times with and without company best.

    Args:
      least: cores, and the demands at the least: the CPU time that was used.
      done: work to compare, of the trainer and of explorers.
      spans: all spans of the run.
    """
    occupation = Occupation(spans)

    def deviations(shared: SharedCores) -> float:
        total = 0.0
        for of_role in done:
            if len(of_role) > 2:
                secs = np.array([occupation.alone_secs(one.span, shared) for one in of_role])
                amounts = np.array([one.amounts for one in of_role])
                scaled = amounts / np.maximum(amounts.mean(axis=0), 1e-12)
                total += (_nnls(scaled, secs)[1] / secs.mean()) ** 2
        return float(total)

    def with_factor(factor: float) -> SharedCores:
        trainer, explorer = factor * least.trainer, factor * least.explorer
        return dataclasses.replace(least, trainer=trainer, explorer=explorer)

    fits = [(deviations(with_factor(factor)), factor) for factor in _FACTORS]
    best, factor = min(fits)
    return with_factor(factor) if best < (1 - _LEAST_GAIN) * fits[0][0] else least


class CoresUsed(NamedTuple):
    """CPU seconds for each second of a role's work.

    Attributes:
      alone: while no other role worked; None if it hardly ever was alone.
      beside: while others did; None if they hardly ever did.
    """

    alone: float | None
    beside: float | None

    @classmethod
    def by(cls, spans: Sequence[Span], others: Sequence[Span]) -> CoresUsed | None:
        """Finds both by least squares from the CPU time of spans; None without any.

        Args:
          spans: work with `cpu_secs`.
          others: work of all roles; that of the same role is left out.
        """
        if not spans:
            return None
        times = []
        for span in spans:
            beside = union_secs(
                clipped(
                    [one for one in others if one.role != span.role],
                    span.start_secs,
                    span.end_secs,
                )
            )
            times.append((span.duration_secs - beside, beside))
        secs = np.array(times)
        totals = secs.sum(axis=0)
        known = totals > _KNOWN_SHARE * totals.sum()
        used = np.array([float(span.attributes["cpu_secs"]) for span in spans])
        found = np.zeros(2)
        found[known] = _nnls(secs[:, known], used)[0]
        rates = (float(one) if one > 0 else None for one in found)
        return cls(*rates)


def fit_decoding(rollouts: Sequence[MeasuredRollout], prefill_secs: float) -> Decoding:
    """Finds the time of a decode step and of each of its sequences, by least squares.

    Args:
      rollouts: at least one.
      prefill_secs: seconds of a group's prefill.
    """
    weights = np.array([[one.steps, one.tokens] for one in rollouts])
    secs = np.array([one.secs for one in rollouts])
    scale = np.maximum(weights.mean(axis=0), 1e-12)  # Steps and tokens count alike.
    found = _nnls(weights / scale, secs)[0] / scale
    decoding = Decoding(float(found[0]), float(found[1]), float(prefill_secs))
    factors = [one.secs / max(decoding.secs(one.steps, one.tokens), 1e-12) for one in rollouts]
    mean = statistics.fmean(factors)
    return decoding._replace(noise=Samples(tuple(factor / mean for factor in factors)))
