"""`timeline`: writes pictures and a trace of a run, from its spans."""

from __future__ import annotations

import os

from rl_sync.launcher.command import Arguments
from rl_sync.settings.records import ConfigError


def execute(arguments: Arguments) -> int:
    """Draws a run and prints the paths of the files.

    Raises:
      ConfigError: a flag is invalid, or the run has no spans.
    """
    flags = arguments.flags
    workdir = flags["workdir"]
    if not os.path.isdir(workdir):
        raise ConfigError(f"--workdir={workdir} is not a directory.")

    from rl_sync.display.timeline_figure import draw_timeline, parse_steps
    from rl_sync.display.trace import write_trace
    from rl_sync.workdir import Workdir

    out = flags.get("out") or workdir
    try:
        steps = parse_steps(flags["steps"]) if "steps" in flags else None
        pictures = draw_timeline(workdir, out, steps=steps)
        trace = write_trace(workdir, Workdir(out).trace)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    for path in (*pictures, trace):
        print(path)
    return 0
