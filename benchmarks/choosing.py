"""Tables of docs/choosing.md: the speed and staleness of schedules, by simulation.

    python benchmarks/choosing.py [--steps=60] [--seeds=0,1] [--document=docs/choosing.md]

A trainer step takes ten seconds and consumes 16 groups of 4 completions. An explorer has 16 slots,
so a batch takes it four turns. A rollout of a whole batch by one explorer takes a given multiple of
a trainer step, on average. Each cell has the share of the time in which the trainer trains, which
is the speed over that of a trainer that never waits, and the mean staleness. Everything takes some
seconds on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_sync.configs import base
from rl_sync.settings.config_reading import read_settings
from rl_sync.simulation.speed.closed_forms import step_times
from rl_sync.simulation.speed.prediction import SpeedFigures, predict, with_steps
from rl_sync.simulation.speed.speed_plan import SpeedPlan, plan_of
from rl_sync.simulation.speed.workload import Decoding, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- simulated: {} -->", "<!-- simulated: end -->"
STEP_SECS, GROUPS, ROWS, SLOTS = 10.0, 16, 4, 16
RATIOS = (0.3, 1.0, 3.0, 10.0)
LONGEST, MEDIAN = 4096, 256
PULL_SECS = 0.1

SCHEDULES: dict[str, dict[str, Any]] = {
    "synchronous": {"mode": "synchronous"},
    "synchronous, interval 4": {"mode": "synchronous", "interval": 4},
    "one-step off-policy": {"mode": "one_step_off_policy"},
    "offset 2": {"mode": "custom", "offset": 2},
    "asynchronous, bound 1": {"mode": "asynchronous", "max_staleness": 1},
    "asynchronous, bound 2": {"mode": "asynchronous", "max_staleness": 2},
    "asynchronous, bound 4": {"mode": "asynchronous", "max_staleness": 4},
    "asynchronous, bound 8": {"mode": "asynchronous", "max_staleness": 8},
    "2 explorers, bound 2": {"mode": "multi_explorer", "max_staleness": 2, "explorers": 2},
    "4 explorers, bound 2": {"mode": "multi_explorer", "max_staleness": 2, "explorers": 4},
    "4 explorers, bound 4": {"mode": "multi_explorer", "max_staleness": 4, "explorers": 4},
    "16 explorers, bound 4": {"mode": "multi_explorer", "max_staleness": 4, "explorers": 16},
    "4 explorers, synchronous": {"mode": "synchronous", "explorers": 4},
    "4 explorers, one-step": {"mode": "one_step_off_policy", "explorers": 4},
    "streaming, bound 2": {"mode": "asynchronous", "max_staleness": 2, "streaming": True},
    "streaming, bound 4": {"mode": "asynchronous", "max_staleness": 4, "streaming": True},
    "streaming, bound 8": {"mode": "asynchronous", "max_staleness": 8, "streaming": True},
}


def plan_named(
    name: str, transfer: str | None = None, in_parts: bool = False, delta: str = "off"
) -> SpeedPlan:
    """Returns the plan of a schedule of the tables."""
    asked = dict(SCHEDULES[name])
    config = base.get_config()
    config.workdir = "nowhere"
    config.trainer.update({"groups_per_step": GROUPS, "group_size": ROWS})
    config.checkpoint.every_steps = 0
    config.evaluation.every_steps = 0
    config.rollout.slots = SLOTS
    config.rollout.streaming = asked.pop("streaming", False)
    config.explorer.count = asked.pop("explorers", None)
    config.sync.update({**asked, "transfer": transfer, "delta": delta})
    return plan_of(read_settings(config.to_dict()), in_parts=in_parts)


def lengths_of(tail: float) -> tuple[tuple[int, ...], ...]:
    """Returns log-normal lengths of completions with a deviation of their logarithm; 0 for none."""
    source = random.Random(7)

    def length() -> int:
        drawn = MEDIAN * 2.718281828 ** (tail * source.gauss(0.0, 1.0))
        return int(min(LONGEST, max(8, drawn)))

    return tuple(tuple(length() for _ in range(ROWS)) for _ in range(512 if tail else 1))


def work_of(
    ratio: float,
    *,
    tail: float = 0.0,
    judge: float = 0.0,
    publish_secs: float = PULL_SECS,
    pull_secs: float = PULL_SECS,
) -> Workload:
    """Returns a workload.

    Args:
      ratio: mean time of one explorer's rollout of a batch, in trainer steps.
      tail: see `lengths_of`.
      judge: time of a judgement, in rollouts of a batch.
    """
    times = TransferTimes(Samples.of(publish_secs), Samples.of(pull_secs))
    work = Workload(
        lengths=lengths_of(tail),
        decoding=Decoding(step_secs=1.0),
        train=Samples.of(STEP_SECS),
        groups_per_step=GROUPS,
        transfers=dict.fromkeys(TRANSFERS, times),
    )
    whole = step_times(plan_named("synchronous"), work).rollout
    decoding = Decoding(step_secs=ratio * STEP_SECS / whole)
    judging = Samples.of(judge * ratio * STEP_SECS)
    return dataclasses.replace(work, decoding=decoding, judge=judging)


def cell(figures: SpeedFigures) -> str:
    """Writes the speed and the mean staleness."""
    share = figures.steps_an_hour * STEP_SECS / 3600
    return f"{share:.2f} ({figures.mean_staleness:.1f})"


class Tables:
    """Makes the tables.

    Args:
      steps: trainer steps of a simulated run.
      seeds: seeds of the runs of a cell.
    """

    def __init__(self, steps: int, seeds: Sequence[int]) -> None:
        self._steps, self._seeds = steps, seeds

    def one(self, plan: SpeedPlan, work: Workload) -> str:
        """Returns a cell."""
        return cell(predict(with_steps(plan, self._steps), work, self._seeds))

    def ratios(self, tail: float, names: Sequence[str]) -> str:
        """Returns the table of ratios of rollouts to steps."""
        works = [work_of(ratio, tail=tail) for ratio in RATIOS]
        rows = [[name, *(self.one(plan_named(name), work) for work in works)] for name in names]
        return table(["schedule", *(f"{ratio:g} × a step" for ratio in RATIOS)], rows)

    def judges(self) -> str:
        """Returns the table of slow judges."""
        slow = (0.0, 1.0, 5.0)
        names = [
            "synchronous", "one-step off-policy", "offset 2", "asynchronous, bound 2",
            "asynchronous, bound 8", "streaming, bound 8",
        ]  # fmt: skip
        rows = [
            [
                name,
                *(
                    self.one(
                        plan_named(name, in_parts=judge > 0), work_of(1.0, tail=0.5, judge=judge)
                    )
                    for judge in slow
                ),
            ]
            for name in names
        ]
        return table(["schedule", *(f"judging {judge:g} rollouts" for judge in slow)], rows)

    def links(self) -> str:
        """Returns the table of slow links."""
        slow = (0.01, 0.3, 1.0, 3.0)
        cases = [
            ("synchronous", "collective", ""),
            ("synchronous, interval 4", "collective", ""),
            ("one-step off-policy", "collective", ""),
            ("offset 2", "checkpoint", ", checkpoint"),
            ("asynchronous, bound 2", "checkpoint", ", checkpoint"),
            ("asynchronous, bound 4", "checkpoint", ", checkpoint"),
            ("asynchronous, bound 2", "server", ", fetched beside"),
            ("asynchronous, bound 4", "server", ", fetched beside"),
            ("asynchronous, bound 8", "server", ", fetched beside"),
        ]
        rows = []
        for name, transfer, more in cases:
            plan = plan_named(name, transfer, delta="on" if transfer == "server" else "off")
            works = [
                work_of(
                    1.0,
                    tail=0.5,
                    publish_secs=link * STEP_SECS if transfer == "checkpoint" else 0.0,
                    pull_secs=link * STEP_SECS,
                )
                for link in slow
            ]
            rows.append([f"{name}{more}", *(self.one(plan, work) for work in works)])
        return table(["schedule", *(f"{link:g} steps" for link in slow)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def put(text: str, name: str, made: str) -> str:
    """Puts a table between its two marks.

    Raises:
      SystemExit: the document lacks them.
    """
    before, begin, rest = text.partition(BEGIN.format(name))
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The document lacks the marks {BEGIN.format(name)} and {END}.")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def main() -> None:
    """Makes all tables, and writes them into the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="trainer steps of a simulated run")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "choosing.md")
    arguments = parser.parse_args()
    tables = Tables(arguments.steps, [*map(int, arguments.seeds.split(","))])
    steady = [
        "synchronous", "synchronous, interval 4", "one-step off-policy", "offset 2",
        "asynchronous, bound 1", "asynchronous, bound 2", "4 explorers, synchronous",
        "4 explorers, one-step", "2 explorers, bound 2", "4 explorers, bound 2",
        "16 explorers, bound 4",
    ]  # fmt: skip
    tails = [
        "synchronous", "one-step off-policy", "offset 2", "asynchronous, bound 2",
        "asynchronous, bound 4", "streaming, bound 2", "streaming, bound 4", "streaming, bound 8",
        "4 explorers, one-step", "4 explorers, bound 2", "4 explorers, bound 4",
    ]  # fmt: skip
    text = arguments.document.read_text()
    for name, made in (
        ("ratios", lambda: tables.ratios(0.0, steady)),
        ("tails", lambda: tables.ratios(1.0, tails)),
        ("judges", tables.judges),
        ("links", tables.links),
    ):
        table_made = made()
        print(f"{name}\n{table_made}\n", flush=True)
        text = put(text, name, table_made)
    arguments.document.write_text(text)


if __name__ == "__main__":
    main()
