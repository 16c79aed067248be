"""Alarms: troubles of a run that its metrics show, each with its condition and a way out.

`ALARMS` lists them all. A `Watch` takes the metrics of trainer steps one by one; `raised` says
which alarms hold after the last one, and `history` which held when.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.observe.jsonlines import read_json_lines
from rl_sync.workdir import Workdir

UNPRINTABLE = "unprintable_fraction"
"""The metric of the share of completions with text that cannot be printed."""

LOGPROB_GAP = "logprob gap"
"""The name of the alarm of trainer and explorers that compute differently."""

_NAMES = (
    "step",
    "reward_mean",
    "reward_min",
    "reward_max",
    "groups_without_spread",
    "entropy",
    "logprob_gap",
    "truncated_fraction",
    UNPRINTABLE,
)
_OF_COMPLETIONS = ("no reward", "unprintable text", "truncation")
_SOLVED = 0.9  # Of the way from the least to the greatest reward of the run.
_COLLAPSED = 0.1  # Of the entropy of the first steps.
_ALIKE = 0.9
_CUT = 0.5
_GARBLED = 0.1

Metrics = Mapping[str, Any]


class Limits(NamedTuple):
    """Settings that alarms depend on.

    Attributes:
      steps: the number of trainer steps in a row after which a trouble is an alarm.
      group_size: completions of a prompt.
      logprob_gap: the greatest gap in nats that is no alarm; 0 for none.
    """

    steps: int = 5
    group_size: int = 2
    logprob_gap: float = 0.0


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The facts that alarms are raised on.

    Attributes:
      limits: the settings.
      first, last: metrics of the first and of the last steps, as many as `limits.steps`.
      lowest, highest: the least and the greatest reward so far.
      restarts: how often each role was started again.
    """

    limits: Limits
    first: Sequence[Metrics] = ()
    last: Sequence[Metrics] = ()
    lowest: float = math.inf
    highest: float = -math.inf
    restarts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def recent(self, name: str) -> list[float]:
        """Returns a metric of the last steps; empty if there are too few steps that have it."""
        values = [one[name] for one in self.last if one.get(name) is not None]
        return values if len(values) == self.limits.steps else []

    def mean(self, name: str) -> float:
        """Returns the mean of a metric over the last steps; NaN if too few steps have it."""
        return _mean(self.recent(name))

    @property
    def is_solved(self) -> bool:
        """True if rewards have varied, and are now near the greatest."""
        enough = self.lowest + _SOLVED * (self.highest - self.lowest)
        return self.highest > self.lowest and self.mean("reward_mean") >= enough


class Alarm(NamedTuple):
    """An alarm that was raised.

    Attributes:
      name: see `Kind`.
      text: one sentence on what is wrong, and one on what to do.
    """

    name: str
    text: str


class Kind(NamedTuple):
    """A kind of alarm.

    Attributes:
      name: a few words.
      condition: a sentence, for the documentation.
      advice: a sentence for the user.
      found: describes the trouble; empty if there is none.
    """

    name: str
    condition: str
    advice: str
    found: Callable[[Evidence], str]


class Period(NamedTuple):
    """Consecutive trainer steps after which an alarm held, with its last text."""

    alarm: Alarm
    first_step: int
    last_step: int


def _no_reward(evidence: Evidence) -> str:
    least, greatest = evidence.recent("reward_min"), evidence.recent("reward_max")
    if not least or any(least) or any(greatest):
        return ""
    return f"no completion earned a reward in the last {len(least)} trainer steps"


def _no_spread(evidence: Evidence) -> str:
    shares = evidence.recent("groups_without_spread")
    if evidence.limits.group_size < 2 or not shares or min(shares) < 1 - 1e-6:
        return ""
    if evidence.is_solved or _no_reward(evidence):
        return ""
    return (
        f"in the last {len(shares)} trainer steps all completions of each group had the same"
        f" reward, {evidence.mean('reward_mean'):.3g} on average, so nothing was learned from them"
    )


def _entropy_collapse(evidence: Evidence) -> str:
    entropy = evidence.mean("entropy")
    first = _mean([one["entropy"] for one in evidence.first if one.get("entropy") is not None])
    if not entropy < _COLLAPSED * first or evidence.is_solved:
        return ""
    alike = evidence.mean("groups_without_spread")
    if evidence.limits.group_size > 1 and not alike >= _ALIKE:
        return ""
    return (
        f"the entropy fell from {first:.3g} to {entropy:.3g} nats, and rewards are at"
        f" {evidence.mean('reward_mean'):.3g}: the policy writes nearly the same each time"
    )


def _logprob_gap(evidence: Evidence) -> str:
    limit = evidence.limits.logprob_gap
    gap = evidence.last[-1].get("logprob_gap") if evidence.last else None
    if not limit or gap is None or not gap > limit:
        return ""
    return (
        f"the logprobs of trainer and explorers are {gap:.3g} nats apart, more than"
        f" algorithm.logprob_gap_alarm={limit:g}"
    )


def _unprintable(evidence: Evidence) -> str:
    shares = evidence.recent(UNPRINTABLE)
    if not shares or min(shares) < _GARBLED:
        return ""
    return f"{_mean(shares):.0%} of the completions have characters that cannot be printed"


def _truncation(evidence: Evidence) -> str:
    shares = evidence.recent("truncated_fraction")
    if not shares or min(shares) < _CUT:
        return ""
    return f"{_mean(shares):.0%} of the completions were cut by a limit"


def _restarts(evidence: Evidence) -> str:
    counts = [f"{role} {count}×" for role, count in sorted(evidence.restarts.items()) if count]
    return f"roles died and were started again: {', '.join(counts)}" if counts else ""


ALARMS: tuple[Kind, ...] = (
    Kind(
        "no reward",
        "Every reward of so many steps in a row was 0.",
        "Read the completions; make the task easier, warm up longer, or mend the reward.",
        _no_reward,
    ),
    Kind(
        "no spread",
        "In so many steps in a row each group's rewards were equal, and not near the run's best.",
        "Take prompts of other difficulty, a larger trainer.group_size, or"
        " algorithm.need_spread=true.",
        _no_spread,
    ),
    Kind(
        "entropy collapse",
        "The entropy is under a tenth of that of the first steps, nine groups of ten have no"
        " spread, and rewards are not near the run's best.",
        "Lower optimizer.learning_rate, or raise algorithm.entropy_coefficient or"
        " algorithm.kl_coefficient.",
        _entropy_collapse,
    ),
    Kind(
        LOGPROB_GAP,
        "The logprobs of trainer and explorers differ by more than algorithm.logprob_gap_alarm.",
        "Lower sync.max_staleness or optimizer.learning_rate; at staleness 0 look for two dtypes or"
        " engines that compute differently.",
        _logprob_gap,
    ),
    Kind(
        "unprintable text",
        "In so many steps in a row a tenth of the completions had control characters, or bytes that"
        " are no text.",
        "See whether the tokenizer fits the model, and lower rollout.temperature or"
        " optimizer.learning_rate.",
        _unprintable,
    ),
    Kind(
        "truncation",
        "In so many steps in a row half of the completions were cut by a limit.",
        "Raise task.max_completion_tokens or the limits of environment.*, name what ends a"
        " completion (rollout.stop_strings), or reward short ones (algorithm.overlong_tokens).",
        _truncation,
    ),
    Kind(
        "restarts",
        "A role died and was started again.",
        "Its file in logs/ says why.",
        _restarts,
    ),
)


class Watch:
    """Gathers evidence, step by step.

    Args:
      limits: the settings.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._first: list[Metrics] = []
        self._last: collections.deque[Metrics] = collections.deque(maxlen=limits.steps)
        self._lowest, self._highest = math.inf, -math.inf

    def add(self, metrics: Metrics) -> None:
        """Takes the metrics of the next trainer step."""
        some = {name: metrics[name] for name in _NAMES if _is_number(metrics.get(name))}
        if len(self._first) < self._limits.steps:
            self._first.append(some)
        self._last.append(some)
        self._lowest = min(self._lowest, some.get("reward_min", math.inf))
        self._highest = max(self._highest, some.get("reward_max", -math.inf))

    def evidence(self, restarts: Mapping[str, int] | None = None) -> Evidence:
        """Returns the evidence so far."""
        return Evidence(
            self._limits,
            first=self._first,
            last=tuple(self._last),
            lowest=self._lowest,
            highest=self._highest,
            restarts=restarts or {},
        )


def raised(evidence: Evidence) -> list[Alarm]:
    """Returns the alarms that hold, in the order of `ALARMS`."""
    found = [(kind, kind.found(evidence)) for kind in ALARMS]
    return [
        Alarm(kind.name, f"{text[0].upper()}{text[1:]}. {kind.advice}")
        for kind, text in found
        if text
    ]


def are_of_completions(found: Iterable[Alarm]) -> bool:
    """Says whether some completions would explain one of the alarms."""
    return any(alarm.name in _OF_COMPLETIONS for alarm in found)


def history(lines: Iterable[Metrics], limits: Limits) -> list[Period]:
    """Returns when alarms held in a run, in the order in which they ended.

    Args:
      lines: the metrics of all trainer steps, each with its `step`.
    """
    watch = Watch(limits)
    open_periods: dict[str, Period] = {}
    over: list[Period] = []
    for line in lines:
        watch.add(line)
        now = {alarm.name: alarm for alarm in raised(watch.evidence())}
        over += [open_periods.pop(name) for name in [*open_periods] if name not in now]
        for name, alarm in now.items():
            before = open_periods.get(name)
            first = before.first_step if before else line["step"]
            open_periods[name] = Period(alarm, first, line["step"])
    return [*over, *open_periods.values()]


def describe(periods: Sequence[Period], last_step: int) -> list[str]:
    """Writes lines for a report: what holds at the end whole, what has passed on one line.

    Args:
      last_step: the last trainer step of the run.
    """
    lines = [
        f"ALARM since trainer step {one.first_step}: {one.alarm.text}"
        for one in periods
        if one.last_step == last_step
    ]
    passed: dict[str, list[str]] = {}
    for one in periods:
        if one.last_step != last_step:
            steps = {one.first_step, one.last_step}
            passed.setdefault(one.alarm.name, []).append(" to ".join(map(str, sorted(steps))))
    if passed:
        said = "; ".join(f"{name} (steps {', '.join(when)})" for name, when in passed.items())
        lines.append(f"Alarms that have passed: {said}")
    return lines


def read_restarts(workdir: str | os.PathLike[str]) -> dict[str, int]:
    """Counts the restarts of each role in a run's records."""
    path = Workdir(workdir).restarts
    if not path.exists():
        return {}
    return dict(collections.Counter(line["role"] for line in read_json_lines(path, strict=False)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
