"""Calls of the packages of metric backends, which stand-ins record."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from rl_sync.addons.metric_backends import mlflow, tracking
from rl_sync.addons.metric_backends.run_ids import read_identity
from rl_sync.records.backends.backend import Labels, MetricPoint, TrackedRun
from rl_sync.workdir import Workdir


def _tracker(calls, **more):
    def init(**arguments):
        calls.append(("init", arguments))
        return SimpleNamespace(
            log=lambda values, step, **more: calls.append(("log", values, step, *more.items())),
            define_metric=lambda name, step_metric: calls.append(("axis", name, step_metric)),
            finish=lambda **end: calls.append(("finish", end)),
        )

    module = ModuleType("tracker")
    vars(module).update(init=init, Settings=SimpleNamespace, **more)
    return module


POINTS = [
    MetricPoint("sft", 100, 1.0, {"sft/loss": 1.5}),
    MetricPoint("rl", 1, 2.0, {"rl/reward": 0.5}),
]


def _run(workdir, records=0, **labels):
    return TrackedRun(Workdir(workdir), {"name": "sums", "seed": 3}, Labels(**labels), records)


def test_wandb_has_an_axis_for_each_phase_and_a_step_that_never_falls(tmp_path, monkeypatch):
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "wandb", _tracker(calls))
    for name in ("WANDB_DIR", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    backend = tracking.start_wandb(_run(tmp_path, project="p"))
    for point in POINTS:
        backend.log(point)
    backend.finish(False)
    (_, first), *rest = calls
    assert (first["project"], first["name"], first["resume"]) == ("p", tmp_path.name, "allow")
    assert ("axis", "rl/*", "rl/step") in rest
    assert [call[1:] for call in rest if call[0] == "log"] == [
        ({"sft/loss": 1.5, "sft/step": 100}, 1, ("commit", True)),
        ({"rl/reward": 0.5, "rl/step": 1}, 2, ("commit", True)),
    ]
    assert rest[-1] == ("finish", {"exit_code": 1})
    calls.clear()
    monkeypatch.setenv("WANDB_PROJECT", "another")
    backend = tracking.start_wandb(_run(tmp_path, records=5))
    backend.resume(0, POINTS)  # It has them.
    assert [call[0] for call in calls] == ["init", "axis", "axis", "axis"]
    backend.log(POINTS[1])
    assert calls[0][1]["id"] == first["id"]
    assert calls[0][1]["project"] == "p"
    assert calls[-1] == ("log", {"rl/reward": 0.5, "rl/step": 1}, 6, ("commit", True))


def test_wandb_gets_again_what_a_killed_process_may_not_have_saved(tmp_path, monkeypatch):
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "wandb", _tracker(calls))
    tracking.start_wandb(_run(tmp_path)).log(POINTS[0])  # It never finishes.
    secs = [1000.0, 1069.0, 1071.0, 1100.0]
    earlier = [MetricPoint("rl", step, at, {}) for step, at in enumerate(secs, start=1)]
    # W&B's steps go on behind all records, those included that it got again.
    for numbers, steps in [([10, 11], [3, 4]), ([], [])]:
        calls.clear()
        backend = tracking.start_wandb(_run(tmp_path, records=9))
        backend.resume(4, earlier)
        logged = [call[1:3] for call in calls if call[0] == "log"]
        assert logged == [
            ({"rl/step": step}, number) for number, step in zip(numbers, steps, strict=True)
        ]
        backend.finish(True)
    backend.log(POINTS[1])
    assert calls[-1][2] == 12


def test_trackio_resumes_by_name_and_a_new_run_gets_earlier_points(tmp_path, monkeypatch):
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "trackio", _tracker(calls))
    backend = tracking.start_trackio(_run(tmp_path))
    backend.resume(1, POINTS)
    backend.finish(True)
    assert calls[0][1]["resume"] == "never"
    assert [call[2] for call in calls if call[0] == "log"] == [100, 1]
    calls.clear()
    tracking.start_trackio(_run(tmp_path, run_name="renamed")).resume(1, POINTS)
    (only,) = calls
    assert (only[1]["resume"], only[1]["name"]) == ("allow", tmp_path.name)


def test_a_damaged_id_is_named(tmp_path):
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/mlflow.json").write_text("{")
    with pytest.raises(ValueError, match=r"mlflow\.json is damaged .* delete it to begin"):
        read_identity(Workdir(tmp_path), "mlflow")


def test_mlflow_names_have_no_characters_that_it_refuses():
    assert mlflow._named("evaluation/pass@2") == "evaluation/pass_2"
    assert mlflow._named("rl/Ünits a.b:c-d") == "rl/_nits a.b:c-d"
