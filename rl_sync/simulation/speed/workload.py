"""The work of a run, apart from its schedule: how long everything takes that roles do.

Times are those of roles that have their devices for themselves; `SharedCores` says how they slow
each other down where they do not.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Samples:
    """An empirical distribution: each of some measured values is as likely as any other.

    Attributes:
      values: the values, at least one.

    Raises:
      ValueError: there are no values, or one is negative.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0:
            raise ValueError(f"Samples are one or more values of at least 0, not {self.values}.")

    @classmethod
    def of(cls, *values: float) -> Samples:
        """Makes a distribution of some values; of one value, a constant."""
        return cls(values)

    def draw(self, source: random.Random) -> float:
        """Draws a value."""
        return source.choice(self.values)

    def scaled(self, factor: float) -> Samples:
        """Returns the distribution of a multiple."""
        return Samples(tuple(factor * value for value in self.values))

    @property
    def mean(self) -> float:
        """The mean value."""
        return statistics.fmean(self.values)


NOTHING = Samples.of(0.0)
"""The distribution of work that takes no time."""


class Decoding(NamedTuple):
    """Time of an explorer's work on completions.

    Attributes:
      step_secs: seconds of a decode step, however many sequences it decodes.
      row_secs: further seconds of a decode step for each sequence.
      prefill_secs: seconds of a group's prefill.
      noise: factors of a rollout's time that its completions do not explain; 1 on average.
    """

    step_secs: float
    row_secs: float = 0.0
    prefill_secs: float = 0.0
    noise: Samples = Samples.of(1.0)

    def secs(self, steps: float, row_steps: float) -> float:
        """Returns the seconds of decode steps without noise.

        Args:
          row_steps: sum over the steps of the number of sequences.
        """
        return self.step_secs * steps + self.row_secs * row_steps

    def scaled(self, factor: float) -> Decoding:
        """Returns the decoding of devices that take `factor` times as long."""
        return self._replace(
            step_secs=factor * self.step_secs,
            row_secs=factor * self.row_secs,
            prefill_secs=factor * self.prefill_secs,
        )


class TransferTimes(NamedTuple):
    """Times of a weight transfer.

    Attributes:
      publish: seconds until a version can be pulled, after the step that made it. The trainer goes
        on meanwhile. Of no use where trainer and explorers meet.
      pull: seconds in which one explorer receives a version.
      shares_link: whether explorers that pull at the same time share the trainer's link, so that
        each takes longer.
    """

    publish: Samples
    pull: Samples
    shares_link: bool = False


class CallTimes(NamedTuple):
    """Seconds that an explorer's calls add to its work, on a network with a latency.

    Attributes:
      lease: from the end of a rollout until its next lease arrives.
      judge: until the judgements of a rollout are there.
      insert: until its groups are inserted.
    """

    lease: float = 0.0
    judge: float = 0.0
    insert: float = 0.0


_NO_CALLS = CallTimes()


@dataclasses.dataclass(frozen=True)
class SharedCores:
    """Processor cores that roles share.

    When roles could use more cores together than there are, each gets a share in proportion.

    Attributes:
      cores: number of cores.
      trainer, explorer: number of cores that the trainer's step, and one explorer's rollout, use
        when they are alone.
    """

    cores: float
    trainer: float
    explorer: float

    def rate(self, trainers: int, explorers: int) -> float:
        """Returns the speed of roles that work at the same time, as a share of that alone."""
        wanted = trainers * self.trainer + explorers * self.explorer
        return min(1.0, self.cores / wanted) if wanted else 1.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """The work of a run.

    Attributes:
      lengths: sampled tokens of each completion, for some groups to draw from.
      decoding: time of an explorer's work on completions.
      waiting: seconds of a rollout in which nothing is decoded, since its episodes wait for their
        environments, however many they are.
      train: seconds of a trainer step of `groups_per_step` groups.
      groups_per_step: number of groups that are generated for a measured trainer step. The time of
        a step is proportional to it.
      layout: seconds from a whole batch to the start of its step.
      judge: seconds from the end of a group, or of a rollout, until it is judged, where any number
        of them are judged at once.
      judges: number of workers that judge, one completion after the other; 0 where `judge` counts.
      judge_completion: seconds that a worker takes for a completion.
      insert: seconds of inserting a group into the buffer.
      transfers: times of each kind of weight transfer.
      calls: times of an explorer's calls, as far as a network adds them.
      evaluate: seconds of an evaluation.
      snapshot: seconds of a snapshot, in which the trainer does nothing else.
      replaced: share of groups that are dropped after they are judged, and generated anew.
      shared: cores that trainer and explorers share; None if each has devices of its own.
    """

    lengths: tuple[tuple[int, ...], ...]
    decoding: Decoding
    train: Samples
    groups_per_step: int
    transfers: Mapping[str, TransferTimes]
    calls: CallTimes = _NO_CALLS
    waiting: Samples = NOTHING
    layout: Samples = NOTHING
    judge: Samples = NOTHING
    judges: int = 0
    judge_completion: Samples = NOTHING
    insert: Samples = NOTHING
    evaluate: Samples = NOTHING
    snapshot: Samples = NOTHING
    replaced: float = 0.0
    shared: SharedCores | None = None

    def __post_init__(self) -> None:
        if not self.lengths or not all(rows and min(rows) > 0 for rows in self.lengths):
            raise ValueError("A workload needs groups of completions with at least one token.")

    @property
    def judge_secs(self) -> float:
        """Mean seconds until a group is judged while no other is."""
        if not self.judges:
            return self.judge.mean
        return -(-len(self.lengths[0]) // self.judges) * self.judge_completion.mean

    def on_devices(self, trainer: float, explorer: float, apart: bool) -> Workload:
        """Returns the work on other devices.

        Args:
          trainer, explorer: speed of the trainer's devices, and of an explorer's, as multiples of
            those measured.
          apart: whether each role has devices of its own.
        """
        return dataclasses.replace(
            self,
            train=self.train.scaled(1 / trainer),
            decoding=self.decoding.scaled(1 / explorer),
            evaluate=self.evaluate.scaled(1 / explorer),
            shared=None if apart else self.shared,
        )


def rows_of_secs(secs: Iterable[float]) -> tuple[tuple[tuple[int, ...], ...], Decoding]:
    """Expresses given durations of groups as completions.

    Returns:
      Groups of one completion each, and the decoding with which each takes its duration, however
      many there are at once: a token is a thousandth of a second.
    """
    return tuple((max(1, round(1000 * one)),) for one in secs), Decoding(step_secs=0.001)
