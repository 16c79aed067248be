"""Finds how far runs have come, in steps, tokens or seconds, and the point that all reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from rl_sync.records.json_lines import JsonObject
from rl_sync.records.metric_catalog import RL
from rl_sync.records.run_records import RunRecords
from rl_sync.records.run_totals import NUM_TOKENS

By = Literal["steps", "tokens", "seconds", "end"]
"""Measures of how far a run has come; with `end`, each run is compared at its own end."""


class ComparisonPoint(NamedTuple):
    """The point at which runs are compared.

    Attributes:
      by: the measure.
      amount: amount that all runs have reached; None if each run is compared at its own end.
      runs: the runs, with metrics up to this amount.
      said: sentences about the point; empty if runs are not cut.
    """

    by: By
    amount: float | None
    runs: list[RunRecords]
    said: str = ""


def cut(runs: Sequence[RunRecords], by: By = "steps") -> ComparisonPoint:
    """Cuts runs at the end of the shortest; a run without trainer steps is left as it is."""
    reached = [_reached(one, by) for one in runs]
    ends = [amounts[-1][1] for amounts in reached if amounts]
    if by == "end" or len(set(ends)) < 2:
        return ComparisonPoint(by, None, list(runs))
    amount = min(ends)
    found = [
        one.up_to(max((step for step, at in amounts if at <= amount), default=0))
        if amounts
        else one
        for one, amounts in zip(runs, reached, strict=True)
    ]
    point = f"trainer step {amount:,.0f}" if by == "steps" else f"{amount:,.0f} {by}"
    said = (
        f"Accuracy after, reward, entropy and staleness are those at {point}, as far as all of"
        f" these runs have come. Trainer steps of each run: {_each(runs, lambda one: one.steps)}."
    )
    if by != "steps":
        said += f" Compared at trainer step: {_each(found, lambda one: one.until)}."
    if any(one.accuracy_step != one.until for one in found):
        said += f" Accuracy is that after step: {_each(found, lambda one: one.accuracy_step)}."
    return ComparisonPoint(by, amount, found, said)


def _reached(one: RunRecords, by: By) -> list[tuple[int, float]]:
    """Returns the trainer steps of a run, each with the amount reached after it."""
    amounts: dict[str, Callable[[JsonObject], float | None]] = {
        "steps": lambda line: float(line["step"]),
        "tokens": lambda line: line.get(NUM_TOKENS),
        "seconds": lambda line: one.elapsed(line["time"]) if line.get("time") else None,
        "end": lambda line: None,
    }
    found = [(int(line["step"]), amounts[by](line)) for line in one.counted(RL)]
    return [(step, amount) for step, amount in found if amount is not None]


def _each(runs: Sequence[RunRecords], of: Callable[[RunRecords], int | None]) -> str:
    return ", ".join(f"{one.name} {'–' if of(one) is None else of(one)}" for one in runs)
