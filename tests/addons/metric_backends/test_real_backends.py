"""W&B, trackio and MLflow themselves, without a network, on the metrics of a real run.

They bring a hundred packages. So uv makes an environment of its own for real_backends.py.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import uv

from rl_sync.records.backends.backend_catalog import BACKENDS

ROOT = Path(__file__).resolve().parents[3]
BEGUN = "The environment is made."
# Without the settings and fixtures of the other tests, which need JAX.
INSIDE = f"""
import sys, pytest
print({BEGUN!r}, flush=True)
sys.exit(pytest.main(["-q", "-c", "/dev/null", "--rootdir=.", "--noconftest",
                      "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
LEFT_OUT = ("VIRTUAL_ENV", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "WANDB_PROJECT", "WANDB_NAME")


def _train(workdir: Path) -> None:
    command = [sys.executable, "-m", "launcher", f"--config={ROOT}/configs/arithmetic.py"]
    changes = ["trainer.steps=3", f"workdir={workdir}", "sft.steps=100"]
    changes += ["replay.backend=embedded", "launch.colocate=true", "observe.backends="]
    command += [f"--config.{change}" for change in changes]
    path = f"{ROOT}{os.pathsep}{ROOT / 'launch'}"
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not (workdir / "tensorboard").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_each_backend_has_every_number_of_a_run(tmp_path):
    _train(tmp_path / "run")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [kind.extra for kind in BACKENDS.values() if kind.extra]
    packages = [one for name in needed for one in extras["optional-dependencies"][name]]
    interpreter = os.path.realpath(sys.executable)  # Without the packages of this environment.
    command = [uv.find_uv_bin(), "run", "--no-project", "--isolated", "--python", interpreter]
    command += [part for package in [*packages, "numpy", "pytest"] for part in ("--with", package)]
    command += ["python", "-c", INSIDE, "tests/addons/metric_backends/real_backends.py"]
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    environment |= {"PYTHONPATH": str(ROOT), "RUN": str(tmp_path / "run")}
    environment |= {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    environment |= {"UV_CACHE_DIR": _uv_cache()}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    if BEGUN not in run.stdout:
        pytest.skip(f"uv cannot install them: {run.stderr.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"\b5 passed", run.stdout), run.stdout


def _uv_cache() -> str:
    """Returns the cache that has the packages already, as the home directory is another one."""
    found = subprocess.run([uv.find_uv_bin(), "cache", "dir"], capture_output=True, text=True)
    return found.stdout.strip()
