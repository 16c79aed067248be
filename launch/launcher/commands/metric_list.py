"""Lists all metrics with their units, meanings and normal ranges: in a terminal, or as a page.

python -m launcher.commands.metric_list > docs/metrics.md
"""

from __future__ import annotations

from rl_sync.records.alarms import ALARMS
from rl_sync.records.metric_catalog import METRICS
from rl_sync.records.metric_tables.metric import Metric

_INTRODUCTION = """\
# All metrics

`metrics.jsonl` in a run's work directory has a line of JSON for each trainer step (`phase` is \
`rl`), each evaluation (`evaluation`) and each report of SFT (`sft`). Parts in capitals stand for \
any text. Shares are from 0 to 1. The last columns have the names of the same numbers in TRL's \
GRPO trainer and in verl.

TensorBoard, Weights & Biases, trackio and MLflow get the same numbers, as `rl/reward_mean` and so \
on, and the run's settings as hyperparameters: [using.md](using.md#metrics-elsewhere).

This page is made from the source by `python -m launcher.commands.metric_list > docs/metrics.md`."""

_HEAD = (
    "| metric | unit | meaning | normal | look when | TRL | verl |\n|---|---|---|---|---|---|---|"
)


_ALARMS = """\
## Alarms

A run gives an alarm when one of these conditions holds; "so many steps" means \
`observe.alarm_steps`. Rewards count as falling while their mean over so many steps is below an \
earlier one by a tenth of the range of the run's rewards. [rollouts.md](rollouts.md#alarms) says \
where alarms appear.

| alarm | condition | what to do |
|---|---|---|"""


def page() -> str:
    """Returns the list as a page of Markdown."""
    parts = [_INTRODUCTION]
    for phase, sections in METRICS.items():
        for title, metrics in sections.items():
            rows = [_row(metric) for metric in metrics]
            parts.append("\n".join([f"## {title} (`{phase}`)", "", _HEAD, *rows]))
    return "\n\n".join([*parts, _alarms()])


def _alarms() -> str:
    """Returns the alarms as a table."""
    rows = [f"| {kind.name} | {kind.condition} | {kind.advice} |" for kind in ALARMS]
    return "\n".join([_ALARMS, *rows])


def _row(metric: Metric) -> str:
    def code(name: str) -> str:
        return f"`{name}`" if name else ""

    cells = [
        code(metric.name),
        metric.unit,
        metric.meaning,
        metric.normal,
        str(metric.alarm),
        code(metric.trl),
        code(metric.verl),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page())
