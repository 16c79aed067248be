"""`rollouts`: the completions of a run, for a terminal or as JSON lines."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator

import regex
from rich.console import Console

from rl_sync.launcher.command import Arguments, Flags
from rl_sync.launcher.commands import rollout_view as view
from rl_sync.records import alarms
from rl_sync.records.rollouts.rollout_records import (
    SEARCH_SECS,
    Rollout,
    RolloutFilter,
    describe_removed,
    groups_of,
    ordered,
    parts,
    read_rollouts,
)
from rl_sync.records.run_records import RunRecords
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir

FOUND_NOTHING = 1
_STEPS, _GROUPS, _SAMPLES = 20, 40, 10
_PLAIN_COLUMNS = 120  # Width of an output that is not a terminal.
_INT, _FLOAT = r"\d+", r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def execute(arguments: Arguments) -> int:
    """Prints records of a run: see `show`."""
    try:
        return show(arguments.flags)
    except TimeoutError as error:
        raise ConfigError(
            f"--grep={arguments.flags.get('grep')} takes longer than {SEARCH_SECS:g} s on one"
            " completion: its repetitions can match in too many ways. Write it without repetitions"
            " inside repetitions, such as (a+)+."
        ) from error


def show(flags: Flags) -> int:
    """Prints records of a run; returns the exit status, 1 if none matches.

    Raises:
      ConfigError: a flag is invalid, or the run has no records.
    """
    workdir, selection = _workdir(flags), _selection(flags)
    order, limit = flags.get("sort"), flags.get("limit")
    found = read_rollouts(workdir, selection)
    if "json" in flags:
        status = _as_json(found, order, limit)
        if gone := describe_removed(workdir):
            print(gone, file=sys.stderr)
        return status
    knows_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if knows_width else _PLAIN_COLUMNS, highlight=False)
    if selection == RolloutFilter() and order is None:
        return _overview(console, workdir, limit or _STEPS)
    rollouts = list(found)
    if not rollouts:
        return _nothing(workdir)
    of_steps = selection._replace(first_step=0, last_step=None) == RolloutFilter()
    if of_steps and order is None:
        _groups(console, rollouts, limit or _GROUPS)
    else:
        _samples(console, rollouts, order, limit or _SAMPLES)
    _tell_of_removed(console, workdir)
    return 0


def _overview(console: Console, workdir: Workdir, limit: int) -> int:
    """Prints a line for each of the last steps, the alarms, and flags for a closer look."""
    last: dict[int, list[Rollout]] = {}
    earlier = 0
    for one in read_rollouts(workdir):
        last.setdefault(one.step, []).append(one)
        if len(last) > limit:
            del last[next(iter(last))]
            earlier += 1
    if not last:
        return _nothing(workdir)
    console.print(view.steps(last))
    if earlier:
        console.print(f"{earlier} earlier steps: --limit={earlier + len(last)}")
    _tell_of_removed(console, workdir)
    for line in _alarms(workdir):
        console.print(line, style="bold red", markup=False)
    console.print(
        f"\nGroups of a step: --step={[*last][-1]}; the best completions of all: --sort=-reward;"
        " search: --grep=PATTERN; --help has more.",
        style="dim",
    )
    return 0


def _groups(console: Console, rollouts: list[Rollout], limit: int) -> None:
    """Prints a line for each group, and the flag that prints a whole group."""
    groups = groups_of(rollouts)
    shown = [*groups][:limit]
    console.print(view.groups([groups[name] for name in shown]))
    if len(shown) < len(groups):
        console.print(f"{len(groups) - len(shown)} more groups: --limit={len(groups)}")
    console.print(f"\nOne of them whole: --lease={shown[0][1]}", style="dim")


def _samples(console: Console, rollouts: list[Rollout], order: str | None, limit: int) -> None:
    """Prints whole records, side by side if they all belong to one group."""
    found = rollouts if order is None else ordered(rollouts, order)
    some = found[:limit]
    if len(groups_of(some)) == 1 and len(some) > 1:
        console.print(view.side_by_side(some, console.width))
    else:
        for one in some:
            console.print(view.sample(one))
    if len(some) < len(found):
        console.print(f"{len(found) - len(some)} more: --limit={len(found)}")


def _as_json(found: Iterator[Rollout], order: str | None, limit: int | None) -> int:
    rollouts = found if order is None else iter(ordered(found, order))
    count = 0
    for one in rollouts:
        fields = {name: getattr(one, name) for name in Rollout.__dataclass_fields__}
        print(json.dumps(fields, separators=(",", ":")))
        count += 1
        if count == limit:
            break
    return 0 if count else FOUND_NOTHING


def _tell_of_removed(console: Console, workdir: Workdir) -> None:
    """Says which records have gone, also while they were read."""
    if gone := describe_removed(workdir):
        console.print(gone, markup=False)


def _nothing(workdir: Workdir) -> int:
    steps, gone = [one.number for one in parts(workdir)], describe_removed(workdir)
    first = f" Its records begin with step {steps[0]}." if steps else ""
    print(f"No rollout of {workdir} fits.{first}{gone and f' {gone}'}", file=sys.stderr)
    return FOUND_NOTHING


def _alarms(workdir: Workdir) -> list[str]:
    """Returns the alarms of a run; none if it has no metrics yet."""
    run = RunRecords(workdir)
    while run.metrics.refresh():
        pass
    return alarms.describe(run.periods, run.last_step)


def _workdir(flags: Flags) -> Workdir:
    path = flags["workdir"]
    if not os.path.isdir(path):
        raise ConfigError(f"--workdir={path} is not a directory.")
    workdir = Workdir(path)
    if not parts(workdir):
        why = describe_removed(workdir) or (
            "its run has not finished a trainer step, has observe.rollouts=false, or generates"
            " nothing."
        )
        raise ConfigError(f"--workdir={path} has no records of rollouts: {why}")
    return workdir


def _selection(flags: Flags) -> RolloutFilter:
    first, last = _range("step", flags.get("step"), _INT)
    least, greatest = _range("reward", flags.get("reward"), _FLOAT)
    if "grep" in flags:
        try:
            pattern = regex.compile(flags["grep"])
        except regex.error as error:
            raise ConfigError(
                f"--grep={flags['grep']} is not a regular expression ({error}): put a \\ before a"
                " literal sign."
            ) from error
    return RolloutFilter(
        first_step=int(first or 0),
        last_step=None if last is None else int(last),
        prompt_id=flags.get("prompt"),
        lease=flags.get("lease"),
        least=least,
        greatest=greatest,
        pattern=pattern if "grep" in flags else None,
    )


def _range(name: str, text: str | None, number: str) -> tuple[float | None, float | None]:
    """Reads `3`, `3:8`, `3:` or `:8`."""
    if text is None:
        return None, None
    match = re.fullmatch(rf"({number})?(:)?({number})?", text)
    if match is None or (match[1] is None and match[3] is None):
        raise ConfigError(f"--{name}={text} must be a number or a range, such as 3, 3:8, 3: or :8.")
    low = None if match[1] is None else float(match[1])
    if match[2] is None:
        return low, low
    high = None if match[3] is None else float(match[3])
    if low is not None and high is not None and low > high:
        raise ConfigError(f"--{name}={text} begins after its end: write {match[3]}:{match[1]}.")
    return low, high
