"""Stand-ins of both simulations for what a trainer computes and reads, and for an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rl_sync.rollout.stats import Stats


class LaterNumber:
    """A number that the device has not computed yet.

    Args:
      value: the number.
      ready: waits until it is computed.
    """

    def __init__(self, value: float, ready: Callable[[], object]) -> None:
        self._value, self._ready = value, ready

    def __float__(self) -> float:
        self._ready()
        return float(self._value)


class SampledItem(NamedTuple):
    """A sampled item of the replay buffer; see `Sample`."""

    columns: dict[str, np.ndarray]


class NumberedVersion(NamedTuple):
    """A version that a trainer gives to explorers by collective transfer.

    Attributes:
      text: its digest.
    """

    version: int
    params: Any
    text: str


class StandInTrainer:
    """Parts of a simulated trainer's actor that compute nothing."""

    kind, row_tokens = "padded", 1

    def published(self, params: Any) -> Any:
        """See `Parameters`."""
        return params

    def run(self, begin: Callable[[], Any], goes_on: bool) -> Any:
        """Does no SFT."""
        del goes_on
        return begin()

    def prepare(self, batch: object) -> None:
        """Compiles nothing."""

    def of(self, batch: object) -> Callable[..., tuple[Any, Mapping[str, LaterNumber]]]:
        """Returns the step."""
        del batch
        return self._stepped

    def _stepped(self, state: Any, batch: Any) -> tuple[Any, Mapping[str, LaterNumber]]:
        """Dispatches a step."""
        raise NotImplementedError


def step_metrics(
    step: int, versions: Iterable[int], ready: Callable[[], object]
) -> dict[str, LaterNumber]:
    """Returns the metrics of a step that reports read.

    Args:
      versions: oldest version of each group.
      ready: waits until the step is computed.
    """
    staleness = [step - 1 - version for version in versions]
    values = {"staleness_mean": float(np.mean(staleness)), "staleness_max": max(staleness)}
    names = ("reward_mean", "skipped_updates", "skipped_at_end", "unjudged_updates")
    values |= dict.fromkeys(names, 0.0)
    return {name: LaterNumber(value, ready) for name, value in values.items()}


@dataclasses.dataclass
class CountingEngine:
    """An engine of an explorer's loop, which counts and holds nothing; see `RolloutEngine`.

    Attributes:
      stats: counts of the simulated work.
      version: version of the weights; −1 for none.
    """

    stats: Stats = dataclasses.field(default_factory=Stats)
    version: int = -1

    def rest(self) -> None:
        """Has no cache to give back."""

    def unload(self) -> None:
        """Has no weights to let go of."""
