"""Writes predicted schedules as text: the frontier, the chosen one, and what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_sync.plan.compile_text import format_secs
from rl_sync.simulation.speed.frontier import Predicted
from rl_sync.simulation.speed.workload import Workload

_HEAD = (
    "mode",
    "I",
    "O",
    "S",
    "explorers",
    "groups",
    "transfer",
    "steps/h",
    "closed form",
    "staleness",
    "at most",
    "explorers idle",
    "trainer idle",
    "buffer",
    "tokens",
)


def frontier_table(found: Sequence[Predicted], chosen: Predicted | None, steps: int) -> str:
    """Returns a table of schedules; a star marks the chosen one.

    Args:
      steps: number of trainer steps whose time is given.
    """
    several = len({one.candidate.plan.groups_trained for one in found}) > 1
    head = ["", *_HEAD, f"time to {steps} steps", *(["groups/h"] if several else [])]
    rows = [_row(one, one is chosen, steps) for one in found]
    if several:
        rows = [[*row, f"{one.groups_an_hour:,.0f}"] for row, one in zip(rows, found, strict=True)]
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 1, 7) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _row(one: Predicted, is_chosen: bool, steps: int) -> list[str]:
    schedule, figures = one.candidate.plan.schedule, one.figures
    is_exact = schedule.pull == "exact"
    return [
        "*" if is_chosen else "",
        one.candidate.settings.sync.mode,
        str(schedule.interval),
        str(schedule.offset) if is_exact else "-",
        str(schedule.staleness_bound),
        str(one.candidate.plan.master.explorers),
        str(one.candidate.plan.groups_trained),
        one.candidate.plan.transfer,
        f"{figures.steps_an_hour:,.0f}",
        f"{one.steps_an_hour_closed:,.0f}",
        f"{figures.mean_staleness:.2f}",
        f"{figures.max_staleness:.0f}",
        f"{figures.explorer_idle:.0%}",
        f"{figures.trainer_idle:.0%}",
        f"{figures.buffered:.0f}",
        f"{one.tokens.per_trained or 0:.2f}",
        format_secs(one.secs_to(steps)),
    ]


def describe_work(work: Workload, transfer: str) -> str:
    """Returns a sentence about the measured times."""
    times, decoding = work.transfers[transfer], work.decoding
    tokens = [length for rows in work.lengths for length in rows]
    parts = [
        f"train step {format_secs(work.train.mean)}",
        f"decode step {1000 * decoding.step_secs:.3g} ms + {1e6 * decoding.row_secs:.3g} µs a"
        " sequence",
        f"completions of {sum(tokens) / len(tokens):.0f} tokens on average, at most {max(tokens)}",
        f"judging {format_secs(work.judge_secs)}",
        f"publication {format_secs(times.publish.mean)}",
        f"pull {format_secs(times.pull.mean)}",
    ]
    if (shared := work.shared) is not None:
        parts.append(
            f"roles share {shared.cores:g} cores, of which the trainer uses {shared.trainer:.1f}"
            f" and an explorer {shared.explorer:.1f}"
        )
    return "; ".join(parts)


def as_json(one: Predicted) -> dict[str, Any]:
    """Returns a schedule and its figures as plain values."""
    return {
        "settings": dict(one.candidate.changes),
        **{name: float(value) for name, value in one.figures._asdict().items()},
        "steps_an_hour_closed": float(one.steps_an_hour_closed),
        "groups_an_hour": float(one.groups_an_hour),
        "tokens_per_trained": one.tokens.per_trained,
        "tokens": one.tokens.places,
    }
