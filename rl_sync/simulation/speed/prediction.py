"""Predicts a run: its spans in virtual time, and the figures that they give.

The same figures are read from the spans of a real run, so that both can be compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.records.buffer_level import fill_level
from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import of_kind, staleness, summarize, union
from rl_sync.records.tokens.token_account import TokenAccount, together
from rl_sync.role_names import TRAINER, explorer_name
from rl_sync.simulation.speed.simulated_site import Heard, SimulatedSite, unheard
from rl_sync.simulation.speed.speed_plan import SpeedPlan, plan_of
from rl_sync.simulation.speed.timed_explorer import explorer_of
from rl_sync.simulation.speed.timed_trainer import trainer_of
from rl_sync.simulation.speed.workload import Workload

_FILLING_SHARE = 4
"""The pace counts after this part of a run's steps, which fills the buffer."""


class StuckError(Exception):
    """A simulated run cannot go on, though steps are left."""


class SpeedFigures(NamedTuple):
    """Figures of a run, or means over several.

    Attributes:
      steps_an_hour: trainer steps an hour, once the buffer is filled.
      secs: seconds from the first rollout to the end of the last step.
      mean_staleness, max_staleness: over trained groups, in trainer steps.
      explorer_idle, trainer_idle: share of the time without work.
      buffered: mean number of groups in the buffer.
      tokens_a_step: generated tokens for each trainer step.
    """

    steps_an_hour: float
    secs: float
    mean_staleness: float
    max_staleness: float
    explorer_idle: float
    trainer_idle: float
    buffered: float
    tokens_a_step: float


class SimulatedRecords(NamedTuple):
    """Records of a simulated run.

    Attributes:
      spans: spans of its roles, as a real run records them.
      tokens: account of the tokens of its groups.
    """

    spans: list[Span]
    tokens: TokenAccount


def simulate(plan: SpeedPlan, work: Workload, seed: int = 0, heard: Heard = unheard) -> list[Span]:
    """Returns the spans of a simulated run; see `simulated`."""
    return simulated(plan, work, seed, heard).spans


def simulated(
    plan: SpeedPlan, work: Workload, seed: int = 0, heard: Heard = unheard
) -> SimulatedRecords:
    """Simulates a run.

    Args:
      heard: see `Heard`.

    Raises:
      StuckError: all roles wait for each other.
    """
    site = SimulatedSite(plan, work, seed, heard)
    for number in range(1, plan.explorers + 1):
        site.clock.thread(explorer_of(site, number), explorer_name(number))
    site.clock.thread(trainer_of(site), TRAINER)
    while not site.is_over:
        if not site.queue.step():
            trained = site.master.trained_steps
            raise StuckError(
                f"After {trained} of {plan.master.steps} steps nothing happens any more."
            )
    spans = sorted(site.spans, key=lambda span: (span.start_secs, span.end_secs))
    site.clock.die()
    return SimulatedRecords(spans, site.tokens)


def figures_of(spans: Sequence[Span]) -> SpeedFigures:
    """Returns the figures of a run from its spans.

    The pace leaves out steps during which a role compiled.

    Raises:
      ValueError: the run has fewer than two steps, or no rollout.
    """
    summary = summarize(spans)
    levels = fill_level(spans)
    ends = [*levels[1:], levels[-1]._replace(secs=max(span.end_secs for span in spans))]
    filled = sum(
        level.groups * (after.secs - level.secs) for level, after in zip(levels, ends, strict=True)
    )
    whole = ends[-1].secs - levels[0].secs
    return SpeedFigures(
        steps_an_hour=3600 / step_secs(spans),
        secs=summary.wall_secs,
        mean_staleness=statistics.fmean(staleness(spans)),
        max_staleness=float(max(staleness(spans))),
        explorer_idle=summary.explorer_idle_share,
        trainer_idle=summary.role(TRAINER).idle_share,
        buffered=filled / whole if whole else 0.0,
        tokens_a_step=_tokens(spans) / len(of_kind(spans, SpanKind.TRAIN, role=TRAINER)),
    )


def _tokens(spans: Sequence[Span]) -> int:
    return sum(span.attributes.get("tokens", 0) for span in of_kind(spans, SpanKind.ROLLOUT))


def step_secs(spans: Sequence[Span]) -> float:
    """Returns the mean seconds from one step's end to the next, once the buffer is filled.

    Raises:
      ValueError: there are fewer than two such steps.
    """
    ends = [span.end_secs for span in of_kind(spans, SpanKind.TRAIN, role=TRAINER)]
    compiled = union(of_kind(spans, SpanKind.COMPILE))
    first = len(ends) // _FILLING_SHARE
    times = [
        after - before
        for before, after in zip(ends[first:-1], ends[first + 1 :], strict=True)
        if not any(start < after and end > before for start, end in compiled)
    ]
    if not times:
        raise ValueError(
            f"The run recorded {len(ends)} trainer steps, and no two in a row without compilation:"
            " let it run for more steps."
        )
    return statistics.fmean(times)


def predict(plan: SpeedPlan, work: Workload, seeds: Sequence[int] = (0,)) -> SpeedFigures:
    """Returns the mean figures of simulated runs; see `predict_with_tokens`."""
    return predict_with_tokens(plan, work, seeds)[0]


def predict_with_tokens(
    plan: SpeedPlan, work: Workload, seeds: Sequence[int]
) -> tuple[SpeedFigures, TokenAccount]:
    """Simulates runs with several seeds; returns their mean figures, and their common account.

    Raises:
      StuckError: all roles wait for each other.
    """
    runs = [simulated(plan, work, seed) for seed in seeds]
    found = [figures_of(one.spans) for one in runs]
    figures = SpeedFigures(*map(statistics.fmean, zip(*found, strict=True)))
    return figures, together([one.tokens for one in runs])


def with_steps(plan: SpeedPlan, steps: int) -> SpeedPlan:
    """Returns the plan of a run of another number of steps."""
    return plan_of(plan.settings, steps=steps, in_parts=plan.in_parts)
