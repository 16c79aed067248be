"""Searches for faults that break a rule: `python -m rl_sync.simulation.faults --seeds=0:10000`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rl_sync.simulation.faults.drawn_run import draw
from rl_sync.simulation.faults.search import Alteration, Finding, SearchProgress, search, shrink
from rl_sync.simulation.faults.world import SimulatedOutcome, simulate

_COMMAND = "python -m rl_sync.simulation.faults"
_LAST_EVENTS = 60


def parse_seeds(text: str) -> range:
    """Reads one seed, or the first one and the one after the last: "7" or "0:10000".

    Raises:
      ValueError: the text has neither form.
    """
    first, colon, end = text.partition(":")
    try:
        return range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise ValueError(f'--seeds={text} is not a seed such as "7", or "0:10000".') from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--seeds", default="0:10000", help="a seed, or first:end")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kinds", help="of one seed: kinds of faults, with commas between them")
    parser.add_argument("--faults", help="of one seed: numbers of the drawn faults")
    parser.add_argument("--steps", type=int, help="of one seed: number of trainer steps")
    parser.add_argument("--timeline", type=Path, help="of one seed: file for a picture of the run")
    given = parser.parse_args(arguments)
    try:
        seeds = parse_seeds(given.seeds)
    except ValueError as error:
        parser.error(str(error))
    if len(seeds) == 1:
        return _show(seeds[0], _alteration(given), given.timeline)
    progress, failing = SearchProgress(len(seeds)), None
    for found in search(seeds, given.processes):
        if (line := progress.add(found)) is not None:
            print(line, flush=True)
        if found.failed:
            failing = found
            break
    if failing is None:
        print("No rule was broken.")
        return 0
    return _explain(failing)


def _alteration(given: argparse.Namespace) -> Alteration:
    kinds = given.kinds and tuple(given.kinds.split(","))
    if given.kinds == "":
        kinds = ()
    faults = None
    if given.faults is not None:
        faults = tuple(int(number) for number in given.faults.split(",") if number)
    return Alteration(kinds, faults, given.steps)


def _explain(found: Finding) -> int:
    """Says which rule a seed breaks, and how to see it again with fewer faults."""
    print(f"\nSeed {found.seed} breaks a rule: {found.failed}\nMaking its run smaller ...")
    smallest = shrink(found.seed)
    _show(found.seed, smallest, None)
    print(f"\nTo see it again:\n  {_COMMAND} --seeds={found.seed}{smallest}")
    return 1


def _show(seed: int, alteration: Alteration, timeline: Path | None) -> int:
    """Simulates one run, and lists its last events."""
    run = alteration.applied(draw(seed))
    outcome = simulate(run, notes=True)
    print(f"{run}\nkinds of faults: {', '.join(sorted(run.kinds)) or 'none'}")
    for fault in run.faults:
        print(f"  {fault}")
    for noted in outcome.noted[-_LAST_EVENTS:]:
        print(noted)
    print(outcome.failed or f"No rule was broken in {outcome.secs:.1f} s of virtual time.")
    if timeline is not None:
        _draw(outcome, str(run), timeline)
    return 1 if outcome.failed else 0


def _draw(outcome: SimulatedOutcome, title: str, file: Path) -> None:
    """Draws the timeline of a run, as for real ones."""
    from rl_sync.display.timeline_figure import draw as draw_spans

    end = max((span.end_secs for span in outcome.spans), default=1.0)
    roles = sorted({span.role for span in outcome.spans})
    draw_spans(outcome.spans, (0.0, end), title.partition(":")[0], roles=roles).savefig(file)
    print(f"The timeline is in {file}.")


if __name__ == "__main__":
    sys.exit(main())
