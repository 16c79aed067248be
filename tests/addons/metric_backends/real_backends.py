"""The metrics of a run in real W&B, trackio and MLflow, read back with their own readers.

`test_real_backends.py` has uv run this in an environment that has these packages, with the work
directory of a run in the variable `RUN`.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from rl_sync.addons.metric_backends.run_ids import read_identity
from rl_sync.records.backends.backend import Labels
from rl_sync.records.metrics import read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.workdir import Workdir

RUN = Path(os.environ["RUN"])
LINES = read_metrics(RUN)
CUT = len(LINES) // 2
STEPS = json.loads((RUN / "config.json").read_text())["trainer"]["steps"]
# Names that a run has with several completions a problem, or with categories.
EXTRA = {"pass@2": 0.75, "accuracy/add": 0.5}


def _values(line):
    return {
        f"{line['phase']}/{name}": value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in ("step", "time", "phase")
    }


EXPECTED = {
    (name, line["step"]): value
    for line in [*LINES, {"phase": "evaluation", "step": 99, **EXTRA}]
    for name, value in _values(line).items()
}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A work directory whose run stopped in the middle and was resumed, by each backend's test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    workdir = tmp_path / "sums-asynchronous"
    workdir.mkdir()
    shutil.copy(RUN / "config.json", workdir)
    return workdir


def _write(workdir, backend, caplog, **labels):
    """Writes the run in two halves, as a run that was resumed."""
    for number, lines in enumerate((LINES[:CUT], LINES[CUT:])):
        with MetricsWriter(workdir, [backend], Labels(**labels)) as writer:
            if number:
                writer.resume(LINES[CUT - 1]["step"])
            for line in lines:
                values = {k: v for k, v in line.items() if k not in ("phase", "step", "time")}
                writer.write(line["phase"], line["step"], values)
            if number:
                writer.write("evaluation", 99, EXTRA)
    said = [r.getMessage() for r in caplog.records if r.name.startswith("rl_sync")]
    assert said == [], said


def test_the_run_has_enough_to_compare():
    assert len(LINES) >= 4
    assert len(EXPECTED) > 100
    assert {line["phase"] for line in LINES} == {"sft", "rl", "evaluation"}


def _wandb_records(data):
    """Reads W&B's messages from its log of an offline run, as `wandb sync` does.

    After a header of 7 bytes come blocks of 32 KiB with fragments: a checksum of 4 bytes, a length
    of 2, and a kind (1 whole, 2 first, 3 middle, 4 last), as in LevelDB's logs.
    """
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb_offline_has_every_value(workdir, caplog):
    _write(workdir, "wandb", caplog, project="sums")
    found, steps, ids, settings = {}, [], set(), {}
    files = sorted(Workdir(workdir).backends.glob("wandb/offline-run-*/run-*.wandb"))
    for file in files:
        for record in _wandb_records(file.read_bytes()):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                assert record.run.project == "sums"
                settings |= {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
            if record.HasField("history"):
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                steps.append(row["_step"])
                for name, value in row.items():
                    phase = name.partition("/")[0]
                    if "/" in name and not name.endswith("/step"):
                        found[name, row[f"{phase}/step"]] = value
    assert len(files) == 2
    assert ids == {read_identity(Workdir(workdir), "wandb")["id"]}
    assert found == EXPECTED
    assert steps == sorted(set(steps)), "W&B drops what is older"
    assert settings["sync.mode"] == json.loads((RUN / "config.json").read_text())["sync"]["mode"]


def test_trackio_has_every_value(workdir, caplog):
    from trackio.sqlite_storage import SQLiteStorage

    _write(workdir, "trackio", caplog, project="sums")
    (only,) = SQLiteStorage.get_run_records("sums")
    assert only["name"] == workdir.name
    logs = SQLiteStorage.get_logs("sums", only["name"], run_id=only["id"])
    found = {
        (name, row["step"]): value for row in logs for name, value in row.items() if "/" in name
    }
    assert found == EXPECTED
    config = SQLiteStorage.get_run_config("sums", only["name"], run_id=only["id"])
    assert config["trainer.steps"] == STEPS


def test_mlflow_has_every_value(workdir, tmp_path, caplog):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    _write(workdir, "mlflow", caplog, project="sums", mlflow_uri=uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("sums")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (workdir.name, "FINISHED")
    found = {
        (name, one.step): one.value
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    }
    assert found == {(name.replace("@", "_"), step): v for (name, step), v in EXPECTED.items()}
    assert run.data.params["trainer.steps"] == str(STEPS)
    assert run.data.tags["rl_sync.resumed_at"] == str(LINES[CUT - 1]["step"])


def test_a_server_that_is_not_there_is_told_and_the_run_goes_on(workdir, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = "http://127.0.0.1:9"
    with MetricsWriter(workdir, ["mlflow"], Labels(mlflow_uri=uri)) as writer:
        writer.write("rl", 1, {"reward": 0.5})
    said = [r.getMessage() for r in caplog.records if r.name.startswith("rl_sync")]
    assert len(said) == 1
    assert said[0].startswith("mlflow gets no more metrics: MlflowException: ")
    assert len(read_metrics(workdir)) == 1
