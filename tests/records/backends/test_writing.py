"""Metrics on their way to the backends that the settings name."""

import json
from pathlib import Path

import pytest

from rl_sync.records.backends import backend_catalog
from rl_sync.records.backends.backend import Labels
from rl_sync.records.backends.backend_catalog import BACKENDS, BackendKind, check_installed
from rl_sync.records.metrics import read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.workdir import Workdir
from tests.records.backends import fakes

ROOT = Path(__file__).parents[3]
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


def test_one_of_the_users_own_is_a_file_and_a_function(tmp_path):
    text = (ROOT / "docs" / "using.md").read_text().partition("observe.backends=my_metrics.py")[2]
    file = tmp_path / "my_metrics.py"
    file.write_text(text.partition("```python\n")[2].partition("```")[0])
    name = f"{file}:start"
    check_installed([name])
    for step in (1, 2):
        with MetricsWriter(tmp_path, [name]) as writer:
            if step == 2:
                writer.resume(1)
            writer.write("rl", step, {"reward": step / 4})
    lines = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert lines == [
        {"step": 1, "rl/reward": 0.25},
        {"resumed_at": 1},
        {"step": 2, "rl/reward": 0.5},
    ]


def test_one_of_the_users_own_that_cannot_be_is_refused(tmp_path, caplog):
    file = tmp_path / "my_metrics.py"
    file.write_text("def start(run): pass\n")
    for name, said in {f"{file}:strat": "did you mean 'start'", "no.py:start": "no file"}.items():
        with pytest.raises(ValueError, match=said):
            check_installed([name])
    with MetricsWriter(tmp_path, [f"{file}:start"]) as writer:
        writer.write("rl", 1, {})
    assert "TypeError: it returned a NoneType, not a Backend" in caplog.text


def test_missing_packages_are_refused(monkeypatch):
    assert ObserveSettings(backends="").chosen_backends == []
    assert ObserveSettings(backends="wandb, mlflow,wandb").chosen_backends == ["wandb", "mlflow"]
    check_installed(["tensorboard"])
    monkeypatch.setattr(backend_catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "rl_sync\[mlflow\]", or leave mlflow out'):
        check_installed(["mlflow"])
