"""Writes metrics to Weights & Biases, or to trackio, which copies the functions of W&B.

Neither can delete points: after a resumption they have the repeated steps twice.
"""

from __future__ import annotations

import importlib
import itertools
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from rl_sync.records.backends.backend import Backend, MetricPoint, TrackedRun
from rl_sync.records.backends.run_ids import read_identity, write_identity
from rl_sync.records.metrics import PHASES


def start_wandb(run: TrackedRun) -> Backend:
    """Starts or resumes a run of Weights & Biases.

    W&B's environment variables have the account and the mode (`WANDB_MODE=offline`). The axis of
    each metric is the step of its phase, logged as `rl/step` and so on; W&B's own step counts the
    records and never falls.
    """
    wandb: Any = importlib.import_module("wandb")
    known = read_identity(run.workdir, "wandb")
    identity = {
        "id": known.get("id") or secrets.token_hex(4),
        "project": known.get("project")
        or _chosen(run.labels.project, "WANDB_PROJECT", run.default_project),
        "name": known.get("name") or _chosen(run.labels.run_name, "WANDB_NAME", run.default_name),
    }
    folder = run.workdir.backends
    folder.mkdir(parents=True, exist_ok=True)
    tracked = wandb.init(
        **identity,
        resume="allow",
        config=dict(run.settings),
        allow_val_change=True,
        # W&B's own variable has priority.
        dir=None if os.environ.get("WANDB_DIR") else str(folder),
        # The master's output is in its log, and does not belong to the run.
        settings=wandb.Settings(console="off"),
    )
    write_identity(run.workdir, "wandb", identity)
    for phase in PHASES:
        tracked.define_metric(f"{phase}/*", step_metric=_step(phase))
    numbers = itertools.count(run.records + 1)

    def log(point: MetricPoint) -> None:
        tracked.log({**point.values, _step(point.phase): point.step}, step=next(numbers))

    return Backend(
        log, _resumption(log, bool(known)), lambda is_well: tracked.finish(exit_code=1 - is_well)
    )


def start_trackio(run: TrackedRun) -> Backend:
    """Starts or resumes a run of trackio; each record has the step of its phase."""
    trackio: Any = importlib.import_module("trackio")
    known = read_identity(run.workdir, "trackio")
    identity = {
        "project": known.get("project") or _chosen(run.labels.project, "", run.default_project),
        "name": known.get("name") or _chosen(run.labels.run_name, "", run.default_name),
    }
    # trackio finds a resumed run by its name.
    resume = "allow" if known else "never"
    tracked = trackio.init(**identity, resume=resume, config=dict(run.settings), embed=False)
    write_identity(run.workdir, "trackio", identity)
    finish: Callable[[], None] = tracked.finish

    def log(point: MetricPoint) -> None:
        tracked.log(dict(point.values), step=point.step)

    return Backend(log, _resumption(log, bool(known)), lambda is_well: finish())


def _resumption(
    log: Callable[[MetricPoint], None], is_known: bool
) -> Callable[[int, Sequence[MetricPoint]], None]:
    """Returns `Backend.resume`: a system that does not have the run yet gets it from the start."""

    def resume(step: int, earlier: Sequence[MetricPoint]) -> None:
        del step
        for point in () if is_known else earlier:
            log(point)

    return resume


def _step(phase: str) -> str:
    return f"{phase}/step"


def _chosen(setting: str | None, variable: str, default: str) -> str:
    """Returns a setting; if it is not set, the environment's value, or else a default."""
    return setting or os.environ.get(variable, "") or default
