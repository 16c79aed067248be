"""Writes metrics to Weights & Biases, or to trackio, which copies the functions of W&B.

Neither can delete points: after a resumption they have the repeated steps twice.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence

from rl_sync.addons.metric_backends.run_ids import read_identity, write_identity
from rl_sync.records.backends.backend import Backend, MetricPoint, TrackedRun
from rl_sync.records.metrics import PHASES

_FINISHED, _REPEATED = "finished", "repeated"
"""Fields of W&B's identity: a mark that the run has finished, and the number of records that were
logged twice."""
_UNSAVED_SECS = 30.0
"""Seconds of a run's end that W&B may lack if its process was killed: offline it writes its file
about every 15 seconds."""


def start_wandb(run: TrackedRun) -> Backend:
    """Starts or resumes a run of Weights & Biases.

    W&B's environment variables have the account and the mode (`WANDB_MODE=offline`). The axis of
    each metric is the step of its phase, logged as `rl/step` and so on; W&B's own step counts the
    records and never falls, since W&B drops what is older. If the process was killed, a resumed run
    logs the last records before it again.
    """
    wandb = importlib.import_module("wandb")
    known = read_identity(run.workdir, "wandb")
    names = _names(run, known, "WANDB_PROJECT", "WANDB_NAME")
    identity = {"id": known.get("id") or secrets.token_hex(4), **names}
    run.workdir.backends.mkdir(parents=True, exist_ok=True)
    tracked = wandb.init(
        **identity,
        resume="allow",
        config=dict(run.settings),
        allow_val_change=True,
        # W&B's own variable has priority.
        dir=None if os.environ.get("WANDB_DIR") else str(run.workdir.backends),
        # The master's output is in its log, and does not belong to the run.
        settings=wandb.Settings(console="off"),
    )
    repeated = known.get(_REPEATED, "0")
    # Without the mark that the run has finished.
    write_identity(run.workdir, "wandb", {**identity, _REPEATED: repeated})
    for phase in PHASES:
        tracked.define_metric(f"{phase}/*", step_metric=_step(phase))
    numbers = itertools.count(run.records + int(repeated) + 1)

    def log(point: MetricPoint) -> None:
        # Without `commit` W&B holds a record back until the next one.
        values = {**point.values, _step(point.phase): point.step}
        tracked.log(values, step=next(numbers), commit=True)

    def resume(step: int, earlier: Sequence[MetricPoint]) -> None:
        del step
        nonlocal repeated
        lacking = _lacking(known, earlier)
        # The next start counts them, too, since metrics.jsonl does not have them twice.
        repeated = str(int(repeated) + len(lacking))
        write_identity(run.workdir, "wandb", {**identity, _REPEATED: repeated})
        for point in lacking:
            log(point)

    def finish(is_well: bool) -> None:
        tracked.finish(exit_code=1 - is_well)
        write_identity(run.workdir, "wandb", {**identity, _REPEATED: repeated, _FINISHED: "yes"})

    return Backend(log, resume, finish)


def start_trackio(run: TrackedRun) -> Backend:
    """Starts or resumes a run of trackio; each record has the step of its phase."""
    trackio = importlib.import_module("trackio")
    known = read_identity(run.workdir, "trackio")
    identity = _names(run, known)
    tracked = trackio.init(
        **identity,
        resume="allow" if known else "never",  # trackio finds a resumed run by its name.
        config=dict(run.settings),
        embed=False,
    )
    write_identity(run.workdir, "trackio", identity)
    finish: Callable[[], None] = tracked.finish

    def log(point: MetricPoint) -> None:
        tracked.log(dict(point.values), step=point.step)

    def resume(step: int, earlier: Sequence[MetricPoint]) -> None:
        del step
        for point in () if known else earlier:
            log(point)

    return Backend(log, resume, lambda is_well: finish())


def _lacking(known: Mapping[str, str], points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Returns the points that W&B may lack: all of a new run, the last ones of a killed one."""
    secs = (0.0 if _FINISHED in known else _UNSAVED_SECS) if known else math.inf
    end = max((point.secs for point in points), default=0.0)
    return [point for point in points if point.secs > end - secs]


def _step(phase: str) -> str:
    return f"{phase}/step"


def _names(
    run: TrackedRun, known: Mapping[str, str], project: str = "", name: str = ""
) -> dict[str, str]:
    """Returns the project and the name that a run had before, or else the ones it gets.

    Args:
      known: identity of the run before; empty if it is new.
      project, name: environment variables that have them if no setting does; empty for none.
    """

    def chosen(setting: str | None, variable: str, default: str) -> str:
        return setting or os.environ.get(variable, "") or default

    return {
        "project": known.get("project") or chosen(run.labels.project, project, run.default_project),
        "name": known.get("name") or chosen(run.labels.run_name, name, run.default_name),
    }
