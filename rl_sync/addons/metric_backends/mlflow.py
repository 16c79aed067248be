"""Writes metrics to MLflow: to the tracking server or database that MLflow's variables name.

MLflow cannot delete points: after a resumption it has the repeated steps twice. Nor can it change
parameters: the ones of the first start stay.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.addons.metric_backends.run_ids import read_identity, write_identity
from rl_sync.records.backends.backend import Backend, MetricPoint, TrackedRun

_MOST_PARAMETERS, _MOST_CHARACTERS = 100, 6000
"""Maximum number of parameters of one call, and of characters of one parameter."""

_NOT_IN_NAMES = re.compile(r"[^\w./: -]", re.ASCII)
RESUMED = "rl_sync.resumed_at"


def start(run: TrackedRun) -> Backend:
    """Starts or resumes a run; in names, characters that MLflow forbids become underscores."""
    tracking = importlib.import_module("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=run.labels.mlflow_uri)
    known = read_identity(run.workdir, "mlflow")
    run_id = known.get("run_id") or _create(client, run)
    write_identity(run.workdir, "mlflow", {"run_id": run_id})
    if known:
        client.update_run(run_id, status="RUNNING")
    _describe(client, run_id, run.settings)
    return Backend(
        lambda point: _log(client, run_id, point),
        lambda step, earlier: _resume(client, run_id, step, () if known else earlier),
        lambda is_well: client.set_terminated(run_id, "FINISHED" if is_well else "FAILED"),
    )


def _create(client: Any, run: TrackedRun) -> str:
    name = run.labels.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.default_project
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    run_name = run.labels.run_name or run.default_name
    return str(client.create_run(number, run_name=run_name).info.run_id)


def _describe(client: Any, run_id: str, settings: Mapping[str, Any]) -> None:
    """Writes the settings that the run does not have yet as its parameters."""
    entities = importlib.import_module("mlflow.entities")
    there = client.get_run(run_id).data.params
    new = iter(
        entities.Param(_named(name), str(value)[:_MOST_CHARACTERS])
        for name, value in settings.items()
        if _named(name) not in there
    )
    while some := list(itertools.islice(new, _MOST_PARAMETERS)):
        client.log_batch(run_id, params=some)


def _log(client: Any, run_id: str, point: MetricPoint) -> None:
    entities = importlib.import_module("mlflow.entities")
    msecs = round(point.secs * 1000)
    metrics = [
        entities.Metric(_named(name), float(value), msecs, point.step)
        for name, value in point.values.items()
    ]
    client.log_batch(run_id, metrics=metrics)


def _resume(client: Any, run_id: str, step: int, earlier: Sequence[MetricPoint]) -> None:
    """Records where the run resumes, since points of later steps stay.

    Args:
      earlier: points that a new run in MLflow starts with.
    """
    for point in earlier:
        _log(client, run_id, point)
    before = client.get_run(run_id).data.tags.get(RESUMED)
    client.set_tag(run_id, RESUMED, f"{before}, {step}" if before else str(step))


def _named(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)
