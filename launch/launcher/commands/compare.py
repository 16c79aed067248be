"""`compare`: compares runs in a table, as JSON, and as curves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_sync.launcher.command import Arguments, Flags
from rl_sync.launcher.commands.report import check_run, write_page
from rl_sync.page import run_comparison
from rl_sync.page.reach import cut
from rl_sync.page.run_comparison import VALUES, SeedGroup, Spread, Value
from rl_sync.records.run_records import RunRecords, open_runs
from rl_sync.settings.records import ConfigError

_PLAIN_COLUMNS = 200  # Width of an output that is not a terminal.
_KINDS = (".html", ".png")


def execute(arguments: Arguments) -> int:
    """Compares runs; see `show`."""
    return show(arguments.flags, arguments.words)


def show(flags: Flags, words: Sequence[str]) -> int:
    """Compares the runs in some directories; returns the exit status.

    Raises:
      ConfigError: there are fewer than two runs with records, or the file cannot be written.
    """
    named = [os.path.expanduser(word) for word in words]
    if len(named) < 2:
        raise ConfigError("compare takes the directories of two runs or more: compare RUN RUN ….")
    for one in named:
        check_run(one, one)
    out = Path(flags["out"]) if "out" in flags else None
    if out is not None and out.suffix not in _KINDS:
        raise ConfigError(f"--out={out} must end with {' or '.join(_KINDS)}.")
    paths = list(dict.fromkeys(Path(os.path.abspath(one)) for one in named))
    if len(paths) < 2:
        raise ConfigError(f"All of these are the same run, {paths[0]}: give another one.")
    runs = open_runs(paths)
    for run in runs:
        run.read(rollouts=False)
    empty = [str(path) for path, one in zip(paths, runs, strict=True) if one.is_empty]
    if empty:
        raise ConfigError(f"These runs have recorded nothing yet: {', '.join(empty)}.")
    point = cut(runs, flags.get("at", "steps"))
    groups = run_comparison.group(point.runs)
    notes = [*filter(None, [point.said]), *_digests(groups)]
    if "json" in flags:
        print(json.dumps(run_comparison.record(groups, point), indent=2))
    else:
        _print(groups, notes)
    if out is not None:
        _draw(groups, notes, out, quiet="json" in flags)
    return 0


def _print(groups: Sequence[SeedGroup], notes: Sequence[str]) -> None:
    width = None if sys.stdout.isatty() else _PLAIN_COLUMNS
    console = Console(width=width, highlight=False)
    console.print(_table(groups))
    for line in notes:
        console.print(Text(line))


def _table(groups: Sequence[SeedGroup]) -> Table:
    """Returns a table: a column per group, and a row per differing setting and per result."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for of in groups:
        table.add_column(Text(of.name), overflow="fold")
    if any(len(of.runs) > 1 for of in groups):
        counts = [f"{len(of.runs)} (seeds {', '.join(map(str, of.seeds))})" for of in groups]
        table.add_row("runs", *counts)
    else:
        table.add_row("seed", *(str(of.seeds[0]) for of in groups))
    for name in dict.fromkeys(name for of in groups for name in of.settings):
        table.add_row(name, *(Text(of.settings.get(name, "–")) for of in groups), style="cyan")
    for value in VALUES:
        table.add_row(value.name, *(_cell(of, value) for of in groups))
    return table


def _cell(of: SeedGroup, value: Value) -> str:
    """Writes a group's result: least / median / greatest, or one run's accuracy and interval."""
    if len(of.runs) == 1 and value.name.startswith("accuracy"):
        one = of.runs[0]
        measured = one.accuracy_before if value.name.endswith("before") else one.accuracy_after
        return "–" if measured is None else str(measured)
    spread = of.spread(value)
    return "–" if spread is None else written(spread, value)


def written(spread: Spread, value: Value) -> str:
    """Writes a spread: one number if all are the same."""
    parts = [value.words(one) for one in spread]
    return parts[0] if len(set(parts)) == 1 else " / ".join(parts)


def _digests(groups: Sequence[SeedGroup]) -> list[str]:
    """Explains the spreads, and says which runs ended with the same parameters."""
    every = [one for of in groups for one in of.runs]
    lines = []
    if any(len(of.runs) > 1 for of in groups):
        lines.append("Results of several seeds: least / median / greatest.")
    by_digest: dict[str, list[RunRecords]] = {}
    for one in every:
        if one.outcome and one.outcome.digest:
            by_digest.setdefault(one.outcome.digest, []).append(one)
    for digest, of in by_digest.items():
        if len(of) > 1:
            names = ", ".join(one.name for one in of)
            lines.append(f"Equal to the bit (digest {digest}): {names}.")
    if run_comparison.are_equal(every) is False and all(len(of) == 1 for of in by_digest.values()):
        lines.append("The parameters of no two runs are equal: all digests differ.")
    unknown = [one.name for one in every if not (one.outcome and one.outcome.digest)]
    if unknown:
        lines.append(f"No digest was recorded for: {', '.join(unknown)}.")
    return lines


def _draw(groups: Sequence[SeedGroup], notes: Sequence[str], out: Path, quiet: bool) -> None:
    if out.suffix == ".html":
        from rl_sync.page.compared import render

        rows = [[value.name, *(_cell(of, value) for of in groups)] for value in VALUES]
        write_page(out, render(groups, rows, notes), quiet=quiet)
        return
    from rl_sync.page.overlay import picture

    write_page(out, picture(groups), quiet=quiet)
