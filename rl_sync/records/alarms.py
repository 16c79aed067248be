"""Alarms: problems of a run that its metrics show, each with its condition and advice.

`ALARMS` lists them all: alarms on several metrics, which are defined here, and one for each
`Threshold` of the catalog of metrics. A `Watch` takes the metrics of trainer steps and of
evaluations one by one. `raised` returns the alarms that hold after the last of them, and `history`
the times at which alarms held.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rl_sync.messages.run_status import Alarm
from rl_sync.records.metric_catalog import EVALUATION, RL, MetricValues, thresholds
from rl_sync.records.metric_tables.metric import Threshold

UNPRINTABLE = "unprintable_fraction"
"""The metric of the share of completions with text that cannot be printed."""

LOGPROB_GAP = "logprob gap"
"""The name of the alarm for trainer and explorers that compute differently."""

ACCURACY = "accuracy fell"
"""The name of the alarm of evaluations."""

_NAMES = (
    "step",
    "reward_mean",
    "reward_min",
    "reward_max",
    "groups_without_spread",
    "groups_shaped_only",
    "shaped_advantages",
    "entropy",
    "logprob_gap",
    *(name for name, _ in thresholds()),
)
_OF_COMPLETIONS = ("no reward", "unprintable text", "truncation", ACCURACY)
_SOLVED = 0.9  # Share of the range from the least to the greatest reward of the run.
_FALLEN = 0.1  # Share of this range, below the best steps.
_COLLAPSED = 0.1  # Share of the entropy of the first steps.
_ALIKE = 0.9
_SHAPED_ONLY = 0.5


class AlarmLimits(NamedTuple):
    """Settings that alarms depend on.

    Attributes:
      steps: the number of trainer steps in a row after which a trouble is an alarm.
      group_size: number of completions of a prompt.
      logprob_gap: maximum gap in nats without an alarm; 0 for no alarm.
      group_mean_low: mean reward below which groups are left out of the loss.
      follows_rewards: whether the loss has the rewards, and not a teacher alone.
    """

    steps: int = 5
    group_size: int = 2
    logprob_gap: float = 0.0
    group_mean_low: float = -math.inf
    follows_rewards: bool = True


class Evaluated(NamedTuple):
    """Held-out accuracy of a policy, the ends of its interval, and the policy's trainer step."""

    step: int
    accuracy: float
    low: float
    high: float

    def __str__(self) -> str:
        when = f"after trainer step {self.step}" if self.step else "before RL"
        return f"{self.accuracy:.1%} {when} (95% interval {self.low:.1%} to {self.high:.1%})"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The facts that alarms are raised on.

    Attributes:
      limits: the settings.
      first, last: metrics of the first and of the last steps, as many as `limits.steps`.
      lowest, highest: least and greatest reward so far.
      best: the greatest mean reward so far of as many consecutive steps as `limits.steps`.
      steps: the number of trainer steps so far.
      restarts: number of restarts of each role.
      best_accuracy: the evaluation whose interval has the greatest lower end.
      last_accuracy: the newest evaluation.
    """

    limits: AlarmLimits
    first: Sequence[MetricValues] = ()
    last: Sequence[MetricValues] = ()
    lowest: float = math.inf
    highest: float = -math.inf
    best: float = -math.inf
    steps: int = 0
    restarts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    best_accuracy: Evaluated | None = None
    last_accuracy: Evaluated | None = None

    def recent(self, name: str) -> list[float]:
        """Returns a metric of the last steps; empty if there are too few steps that have it."""
        values = [one[name] for one in self.last if one.get(name) is not None]
        return values if len(values) == self.limits.steps else []

    def mean(self, name: str) -> float:
        """Returns the mean of a metric over the last steps; NaN if too few steps have it."""
        return _mean(self.recent(name))

    @property
    def is_solved(self) -> bool:
        """True if rewards have varied, and are now near the maximum."""
        enough = self.lowest + _SOLVED * (self.highest - self.lowest)
        return self.highest > self.lowest and self.mean("reward_mean") >= enough

    @property
    def is_falling(self) -> bool:
        """True if rewards of the last steps are clearly lower than those of the best steps."""
        return self.best - self.mean("reward_mean") > _FALLEN * (self.highest - self.lowest)


class AlarmKind(NamedTuple):
    """A kind of alarm.

    Attributes:
      name: a few words.
      condition: a sentence, for the documentation.
      advice: a sentence for the user.
      found: describes the problem; empty if there is none.
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
    if not evidence.limits.follows_rewards or not least or any(least) or any(greatest):
        return ""
    return f"no completion earned a reward in the last {len(least)} trainer steps"


def _no_spread(evidence: Evidence) -> str:
    shares = evidence.recent("groups_without_spread")
    compares = evidence.limits.group_size > 1 and evidence.limits.follows_rewards
    if not compares or not shares or min(shares) < 1 - 1e-6:
        return ""
    if evidence.is_solved or _no_reward(evidence):
        return ""
    return (
        f"in the last {len(shares)} trainer steps all completions of each group had the same"
        f" reward, {evidence.mean('reward_mean'):.3g} on average, so nothing was learned from them"
    )


def _shaping_alone(evidence: Evidence) -> str:
    if evidence.recent("shaped_advantages"):
        return _shaped_advantages(evidence.recent("shaped_advantages"))
    shares = evidence.recent("groups_shaped_only")
    leaves_out = evidence.limits.group_mean_low > evidence.lowest
    if (
        not evidence.limits.follows_rewards
        or leaves_out
        or not shares
        or min(shares) < _SHAPED_ONLY
    ):
        return ""
    return (
        f"in the last {len(shares)} trainer steps no completion solved the problem in"
        f" {_mean(shares):.0%} of the groups, whose advantages come from the reward's other terms"
        " alone, such as those for format or length"
    )


def _shaped_advantages(shares: Sequence[float]) -> str:
    if min(shares) < _SHAPED_ONLY:
        return ""
    return (
        f"in the last {len(shares)} trainer steps {_mean(shares):.0%} of the advantages were of"
        " groups with equal outcomes, where the reward's terms for the form move the policy alone"
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


def _accuracy(evidence: Evidence) -> str:
    best, last = evidence.best_accuracy, evidence.last_accuracy
    if best is None or last is None or not last.high < best.low:
        return ""
    return f"held-out accuracy fell from {best} to {last}"


def _beyond(metric: str, threshold: Threshold) -> Callable[[Evidence], str]:
    """Makes the function that describes a metric beyond its threshold."""

    def found(evidence: Evidence) -> str:
        values = evidence.recent(metric)
        if not values or not all(map(threshold.holds, values)):
            return ""
        if evidence.steps - len(values) < threshold.ignored_steps:
            return ""
        if threshold.falling and not evidence.is_falling:
            return ""
        return (
            f"{metric} was {_mean(values):.3g} on average in the last {len(values)} trainer steps:"
            f" the alarm is for {threshold.bound}"
        )

    return found


def _restarts(evidence: Evidence) -> str:
    counts = [f"{role} {count}×" for role, count in sorted(evidence.restarts.items()) if count]
    return f"roles died and were started again: {', '.join(counts)}" if counts else ""


def _kind(metric: str, threshold: Threshold) -> AlarmKind:
    """Makes the alarm of a metric's threshold."""
    parts = metric.split("/")
    part = next((one for one in threshold.parts if one in parts), parts[-1])
    words = part.replace("_", " ")
    name = threshold.name + f" ({words})" * bool(threshold.parts) if threshold.name else words
    return AlarmKind(
        name,
        f"In so many steps in a row {metric} was {threshold.bound}.",
        f"Look at: {threshold.advice.replace('`', '')}.",
        _beyond(metric, threshold),
    )


ALARMS: tuple[AlarmKind, ...] = (
    AlarmKind(
        "no reward",
        "Every reward of so many steps in a row was 0.",
        "Read the completions; make the task easier, take more SFT steps, or mend the reward.",
        _no_reward,
    ),
    AlarmKind(
        "no spread",
        "In so many steps in a row each group's rewards were equal, and not near the run's best.",
        "Take prompts of other difficulty, a larger trainer.group_size, or"
        " algorithm.filter_zero_variance=true.",
        _no_spread,
    ),
    AlarmKind(
        "shaping alone",
        "In each of so many steps half of the advantages (shaped_advantages) were of groups whose"
        " outcomes are equal; of a reward without terms for the form, its first term gave no"
        " completion more than 0 in half of the groups, and their rewards differed by its other"
        " terms.",
        "Leave such groups out by algorithm.filter=outcome, or by the name of the term that judges"
        " the outcome; lower the weights of the other terms, or make the task easier.",
        _shaping_alone,
    ),
    AlarmKind(
        "entropy collapse",
        "The entropy is under a tenth of that of the first steps, nine groups of ten have no"
        " spread, and rewards are not near the run's best.",
        "Lower optimizer.learning_rate, or raise algorithm.entropy_coefficient or"
        " algorithm.kl_coefficient.",
        _entropy_collapse,
    ),
    AlarmKind(
        LOGPROB_GAP,
        "The logprobs of trainer and explorers differ by more than algorithm.logprob_gap_alarm.",
        "Lower sync.max_staleness or optimizer.learning_rate; at staleness 0 look for two dtypes or"
        " engines that compute differently.",
        _logprob_gap,
    ),
    AlarmKind(
        ACCURACY,
        "The 95 % interval of the newest held-out accuracy lies below that of an earlier"
        " evaluation, such as the one before RL.",
        "Lower optimizer.learning_rate, or take larger batches (trainer.groups_per_step); start"
        " again from an earlier snapshot (checkpoint.best=accuracy keeps the best).",
        _accuracy,
    ),
    *(_kind(metric, threshold) for metric, threshold in thresholds()),
    AlarmKind(
        "restarts",
        "A role died and was started again.",
        "restarts.jsonl says how it ended, and its file in logs/ what it did before.",
        _restarts,
    ),
)


class Watch:
    """Gathers evidence, step by step.

    Args:
      limits: the settings.
    """

    def __init__(self, limits: AlarmLimits):
        self._evidence = Evidence(limits)

    def add(self, metrics: MetricValues) -> None:
        """Takes the metrics of the next trainer step."""
        before, most = self._evidence, self._evidence.limits.steps
        some = {name: metrics[name] for name in _NAMES if _is_number(metrics.get(name))}
        now = dataclasses.replace(
            before,
            first=before.first if len(before.first) == most else (*before.first, some),
            last=(*before.last, some)[-most:],
            lowest=min(before.lowest, some.get("reward_min", math.inf)),
            highest=max(before.highest, some.get("reward_max", -math.inf)),
            steps=before.steps + 1,
        )
        rewards = now.recent("reward_mean")
        best = max(before.best, _mean(rewards)) if rewards else before.best
        self._evidence = dataclasses.replace(now, best=best)

    def add_evaluation(self, step: int, metrics: MetricValues) -> None:
        """Takes the metrics of an evaluation after a trainer step, or before RL if `step` is 0."""
        values = [metrics.get(name) for name in ("accuracy", "accuracy_low", "accuracy_high")]
        if not metrics.get("problems", 1) or not all(map(_is_number, values)):
            return
        last, best = (
            Evaluated(step, *(float(value or 0.0) for value in values)),
            self._evidence.best_accuracy,
        )
        best = last if best is None or last.low > best.low else best
        self._evidence = dataclasses.replace(self._evidence, best_accuracy=best, last_accuracy=last)

    def take(self, line: MetricValues) -> None:
        """Takes a line of a run's metrics, of whatever phase."""
        for step, is_evaluation, metrics in _placed([line]):
            if is_evaluation:
                self.add_evaluation(step, metrics)
            else:
                self.add(metrics)

    def evidence(self, restarts: Mapping[str, int] | None = None) -> Evidence:
        """Returns the evidence so far."""
        return dataclasses.replace(self._evidence, restarts=restarts or {})


def raised(evidence: Evidence) -> list[Alarm]:
    """Returns the alarms that hold, in the order of `ALARMS`."""
    found = [(kind, kind.found(evidence)) for kind in ALARMS]
    return [
        Alarm(kind.name, f"{text[0].upper()}{text[1:]}. {kind.advice}")
        for kind, text in found
        if text
    ]


def are_of_completions(found: Iterable[Alarm]) -> bool:
    """Says whether completions would help to explain one of the alarms."""
    return any(alarm.name in _OF_COMPLETIONS for alarm in found)


def history(lines: Iterable[MetricValues], limits: AlarmLimits) -> list[Period]:
    """Returns when alarms held in a run, in the order in which they ended.

    Args:
      lines: metrics of all trainer steps and evaluations, each with its `step` and, except for
        trainer steps, its `phase`.
    """
    watch = Watch(limits)
    open_periods: dict[str, Period] = {}
    over: list[Period] = []
    # An evaluation may be judged after the next steps have been written.
    for step, _, line in sorted(_placed(lines), key=lambda one: one[:2]):
        watch.take(line)
        now = {alarm.name: alarm for alarm in raised(watch.evidence())}
        over += [open_periods.pop(name) for name in [*open_periods] if name not in now]
        for name, alarm in now.items():
            before = open_periods.get(name)
            open_periods[name] = Period(alarm, before.first_step if before else step, step)
    return [*over, *open_periods.values()]


def last_step(lines: Iterable[MetricValues]) -> int:
    """Returns the last trainer step of a run's metrics; 0 if there is none."""
    return max((step for step, _, _ in _placed(lines)), default=0)


def _placed(lines: Iterable[MetricValues]) -> Iterator[tuple[int, bool, MetricValues]]:
    """Yields trainer steps and evaluations, each with its step and whether it is an evaluation."""
    for line in lines:
        if (phase := line.get("phase", RL)) in (RL, EVALUATION):
            yield line["step"], phase == EVALUATION, line


def describe(periods: Sequence[Period], last_step: int) -> list[str]:
    """Writes lines for a report: alarms at the end in full, past alarms on one line.

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
