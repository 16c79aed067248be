"""Choice among predicted schedules: the frontier of speed against staleness, and one of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl_sync.records.tokens.token_account import TokenAccount
from rl_sync.simulation.speed.closed_forms import closed_form
from rl_sync.simulation.speed.prediction import SpeedFigures, predict_with_tokens
from rl_sync.simulation.speed.schedule_grid import Candidate
from rl_sync.simulation.speed.workload import Workload

CLOSE = 0.02
"""Part of the greatest speed within which a schedule counts as equally fast."""


class Predicted(NamedTuple):
    """A schedule and its predicted figures.

    Attributes:
      steps_an_hour_closed: the closed form of the speed, as a check.
      tokens: account of the tokens of its groups.
    """

    candidate: Candidate
    figures: SpeedFigures
    steps_an_hour_closed: float
    tokens: TokenAccount = TokenAccount()

    @property
    def groups_an_hour(self) -> float:
        """Consumed groups an hour, by which batches of different sizes can be compared."""
        return self.figures.steps_an_hour * self.candidate.plan.master.groups_per_step

    def secs_to(self, steps: int) -> float:
        """Returns the seconds from the first rollout to the end of a step."""
        simulated = self.candidate.plan.master.steps
        return self.figures.secs + (steps - simulated) * 3600 / self.figures.steps_an_hour


def predict_all(
    found: Sequence[Candidate], work: Workload, seeds: Sequence[int]
) -> Iterator[Predicted]:
    """Predicts schedules, in the order in which they are given, each once it is asked for.

    Args:
      seeds: seeds of the simulated runs of each schedule.
    """
    for candidate in found:
        figures, tokens = predict_with_tokens(candidate.plan, work, seeds)
        yield Predicted(candidate, figures, 3600 / closed_form(candidate.plan, work), tokens)


def frontier(found: Sequence[Predicted]) -> list[Predicted]:
    """Returns the schedules that no other one beats in both speed and mean staleness.

    Of schedules with the same speed and staleness, the first one is kept. The fastest comes first.
    """
    order = sorted(
        enumerate(found),
        key=lambda one: (-one[1].groups_an_hour, one[1].figures.mean_staleness, one[0]),
    )
    kept: list[Predicted] = []
    for _, one in order:
        if not kept or one.figures.mean_staleness < kept[-1].figures.mean_staleness - 1e-9:
            kept.append(one)
    return kept


def choose(found: Sequence[Predicted], within: int) -> Predicted:
    """Chooses a schedule: the fastest one within a bound of staleness.

    Of those that are equally fast (see `CLOSE`) it takes the one with the fewest explorers, then
    the one whose data are freshest on average, then the first.

    Args:
      found: schedules, at least one of them within the bound.
      within: maximum staleness of any group that the schedule may allow.
    """
    allowed = [one for one in found if one.candidate.plan.schedule.staleness_bound <= within]
    fastest = max(one.groups_an_hour for one in allowed)
    close = [one for one in allowed if one.groups_an_hour >= (1 - CLOSE) * fastest]
    return min(
        close,
        key=lambda one: (
            one.candidate.plan.master.explorers,
            round(one.figures.mean_staleness, 2),
        ),
    )
