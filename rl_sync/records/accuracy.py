"""Metrics of completions of held-out problems, also separately for parts of the problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.records.estimators import majority, mean_of, pass_at_k
from rl_sync.records.metric_catalog import MetricValues

SEEN, UNSEEN = "seen", "unseen"
MAJORITY = "majority@"


class MeasuredAccuracy(NamedTuple):
    """An accuracy with its confidence interval, whose ends are None if they were not recorded."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.1%}"
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


class JudgedAnswer(NamedTuple):
    """One completion of a problem.

    Attributes:
      solved: whether it solves the problem; None if it could not be judged.
      vote: its answer as text; equal answers have equal texts. None if the reward read no answer;
        such a completion agrees with no other.
      score: what the reward's first term gives it; None if it is not recorded.
    """

    solved: bool | None
    vote: str | None = None
    score: float | None = None


class Problem(NamedTuple):
    """A held-out problem with the completions that were generated for it.

    Attributes:
      answers: one per completion.
      is_seen: whether its prompt is also trained on.
      category: name of its kind of problems; empty for none.
    """

    answers: Sequence[JudgedAnswer]
    is_seen: bool = False
    category: str = ""

    @property
    def judged(self) -> list[JudgedAnswer]:
        """The answers that could be judged."""
        return [answer for answer in self.answers if answer.solved is not None]

    @property
    def solved(self) -> int:
        """The number of completions that solve it."""
        return sum(answer.solved is True for answer in self.answers)


Value = Callable[[Problem], float]
"""A function from a problem with some judged completions to a value from 0 to 1."""


def metric_names(samples: int) -> list[str]:
    """Returns the names of the metrics of evaluations, given the number of completions per problem.

    With one completion there is only `accuracy`. With k there are also `mean@k`, which equals the
    accuracy, `majority@k` if the reward reads answers, and `pass@j`, where j is k or a power of 2
    below k.
    """
    return list(_metrics(samples))


def _metrics(samples: int) -> dict[str, tuple[int, Value]]:
    """Returns the metrics, each with the judged completions that it needs, and its function."""

    def mean(problem: Problem) -> float:
        return problem.solved / len(problem.judged)

    def voted(problem: Problem) -> float:
        judged = problem.judged
        return majority([one.vote for one in judged], [one.solved is True for one in judged])

    def passed(k: int) -> Value:
        return lambda problem: pass_at_k(len(problem.judged), problem.solved, k)

    metrics: dict[str, tuple[int, Value]] = {"accuracy": (1, mean)}
    if samples > 1:
        powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
        metrics |= {f"mean@{samples}": (1, mean), f"{MAJORITY}{samples}": (1, voted)}
        metrics |= {f"pass@{k}": (k, passed(k)) for k in (*powers, samples)}
    return metrics


def measure(problems: Sequence[Problem], samples: int = 1) -> dict[str, float]:
    """Computes the metrics of an evaluation.

    Args:
      samples: number of completions that were generated for each problem.

    Returns:
      The metrics of `metric_names`, but no majority if the reward reads no answers. `NAME_low` and
      `NAME_high` are the ends of the 95 % confidence interval of the metric `NAME` (see
      `rl_sync.records.estimators.mean_of`). `problems` is the number of problems with a judged
      completion. `unjudged` is the number of completions that could not be judged, if there are
      any; no metric counts them. `pass@k` leaves out problems with fewer than k judged completions.
      A metric is NaN, which records write as null, if no problem is left.

      The accuracy of each category is `accuracy/CATEGORY`, with `problems/CATEGORY`. If some scores
      are neither 0 nor 1, `score` is the mean score, and `score/CATEGORY` that of a category: mean
      IoU with the reward `iou`, and ANLS with `anls`. If some prompts are trained on,
      `accuracy_seen` and `problems_seen` cover the problems with these prompts, and
      `accuracy_unseen` and `problems_unseen` all other problems, if there are any.
    """
    metrics = _metrics(samples)
    if not any(answer.vote is not None for one in problems for answer in one.answers):
        metrics = {name: one for name, one in metrics.items() if not name.startswith(MAJORITY)}
    values = _of(problems, metrics)
    unjudged = sum(answer.solved is None for one in problems for answer in one.answers)
    if unjudged:
        values["unjudged"] = unjudged
    is_graded = any(answer.score not in (None, 0, 1) for one in problems for answer in one.judged)
    if is_graded:
        values["score"] = _mean_score(problems)
    accuracy = {"accuracy": _metrics(samples)["accuracy"]}
    for category in sorted({one.category for one in problems} - {""}):
        of_category = [one for one in problems if one.category == category]
        part = _of(of_category, accuracy)
        if is_graded:
            part["score"] = _mean_score(of_category)
        values |= {f"{name}/{category}": value for name, value in part.items()}
    if not any(one.is_seen for one in problems):
        return values
    for name, wanted in ((SEEN, True), (UNSEEN, False)):
        part = _of([one for one in problems if one.is_seen is wanted], accuracy)
        if part["problems"]:
            values[f"accuracy_{name}"] = part["accuracy"]
            values[f"problems_{name}"] = part["problems"]
    return values


def _of(problems: Sequence[Problem], metrics: Mapping[str, tuple[int, Value]]) -> dict[str, float]:
    """Computes metrics of problems; NaN if no problem has enough judged completions."""
    values: dict[str, float] = {}
    for name, (needed, value) in metrics.items():
        enough = [one for one in problems if len(one.judged) >= needed]
        if not enough:
            values |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
            continue
        completions = sum(len(one.judged) for one in enough)
        estimate = mean_of(np.array([value(one) for one in enough]), completions)
        values |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    values["problems"] = sum(bool(one.judged) for one in problems)
    return values


def _mean_score(problems: Sequence[Problem]) -> float:
    """Averages the scores of each problem's completions, then the problems; NaN without scores."""
    scores = [[one.score for one in of.judged if one.score is not None] for of in problems]
    means = [sum(some) / len(some) for some in scores if some]
    return sum(means) / len(means) if means else math.nan


def describe_share(value: float | None) -> str:
    """Formats a metric as a percentage; in words if nothing could be judged."""
    return "not judged" if value is None or math.isnan(value) else f"{value:.1%}"


def describe_interval(values: MetricValues, name: str = "accuracy") -> str:
    """Formats a metric's confidence interval in parentheses; empty if there is none."""
    ends = [values.get(f"{name}{end}") for end in ("_low", "_high")]
    if any(end is None or math.isnan(end) for end in ends):
        return ""
    return f" (95% interval {values[f'{name}_low']:.1%} to {values[f'{name}_high']:.1%})"


def describe_parts(values: MetricValues) -> str:
    """Formats the accuracies of seen and unseen problems in parentheses; empty if none are seen."""
    names = {SEEN: "whose prompts are trained on too", UNSEEN: "others"}
    parts = [
        f"{describe_share(values[f'accuracy_{name}'])} of {values[f'problems_{name}']} {words}"
        for name, words in names.items()
        if f"accuracy_{name}" in values
    ]
    return f" ({', '.join(parts)})" if parts else ""
