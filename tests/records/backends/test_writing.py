"""Metrics on their way to the backends that the settings name."""

import json

import pytest

from rl_sync.records.backends import backend_catalog
from rl_sync.records.backends.backend import Labels
from rl_sync.records.backends.backend_catalog import BACKENDS, BackendKind, check_installed
from rl_sync.records.metrics import read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.workdir import Workdir
from tests.records.backends import fakes

HERE = "tests.records.backends.fakes"


@pytest.fixture(autouse=True)
def _fake_backends(monkeypatch):
    monkeypatch.setitem(BACKENDS, "fake", BackendKind(f"{HERE}:start", "json"))
    monkeypatch.setitem(BACKENDS, "broken", BackendKind(f"{HERE}:start_failing", "json"))


def _got(workdir):
    return fakes.started[str(workdir)].got


def test_a_backend_gets_the_finite_numbers_of_each_line_and_the_settings(tmp_path):
    config = {"name": "sums", "sync": {"mode": "asynchronous", "offset": None}}
    Workdir(tmp_path).config.write_text(json.dumps(config))
    with MetricsWriter(tmp_path, ["fake"], Labels(project="mine")) as writer:
        writer.write("evaluation", 0, {"accuracy": 0.5, "note": "text", "kl": float("nan")})
        writer.write("rl", 1, {"reward": 0.25})
    (_, run), *rest = _got(tmp_path)
    assert run.settings == {"name": "sums", "sync.mode": "asynchronous", "sync.offset": None}
    assert (run.labels.project, run.default_project, run.default_name) == (
        "mine",
        "sums",
        tmp_path.name,
    )
    assert rest == [
        ("evaluation", 0, {"evaluation/accuracy": 0.5}),
        ("rl", 1, {"rl/reward": 0.25}),
        ("finish", True),
    ]
    assert not Workdir(tmp_path).tensorboard.exists()


def test_one_that_fails_takes_nothing_from_the_others(tmp_path, caplog):
    with MetricsWriter(tmp_path, ["broken", "fake"]) as writer:
        for step in (1, 2):
            writer.write("rl", step, {"reward": 0.25})
    assert len(_got(tmp_path)) == 4
    assert len(read_metrics(tmp_path)) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("broken gets no more metrics: RuntimeError: no account was given.")


def test_a_resumption_says_which_points_still_count(tmp_path):
    with MetricsWriter(tmp_path, []) as writer:
        writer.write("sft", 100, {"loss": 1.0})
        for step in (1, 2, 3):
            writer.write("rl", step, {"reward": 0.0})
    with MetricsWriter(tmp_path, ["fake"]) as writer:
        writer.resume(1)
        writer.write("rl", 2, {"reward": 0.5})
    (_, run), *rest = _got(tmp_path)
    assert run.records == 4
    assert rest == [("resume", 1, [100, 1]), ("rl", 2, {"rl/reward": 0.5}), ("finish", True)]


def test_missing_packages_are_refused(monkeypatch):
    assert ObserveSettings(backends="").chosen_backends == []
    assert ObserveSettings(backends="wandb, mlflow,wandb").chosen_backends == ["wandb", "mlflow"]
    check_installed(["tensorboard"])
    monkeypatch.setattr(backend_catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "rl_sync\[mlflow\]", or leave mlflow out'):
        check_installed(["mlflow"])
