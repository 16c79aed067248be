"""The OpenEnv client, against a real server.

OpenEnv brings a hundred packages, some older than those of this project. So uv makes an environment
of its own, in which the tests of openenv_sessions.py run.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import uv

from rl_sync.addons.games.openenv_client import OpenEnvClient

ROOT = Path(__file__).resolve().parents[3]
BEGUN = "The environment is made."
# Without the settings and fixtures of the other tests, which need JAX.
INSIDE = f"""
import sys, pytest
print({BEGUN!r}, flush=True)
sys.exit(pytest.main(["-q", "-c", "/dev/null", "--rootdir=.", "--noconftest",
                      "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("marked", "passed"), [("not nightly", 3), ("nightly", 1)])
def test_the_client_plays_with_the_real_package(marked, passed):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [*project["optional-dependencies"]["openenv"], "jaxtyping", "msgpack", "numpy"]
    packages += ["psutil", "pytest"]
    interpreter = os.path.realpath(sys.executable)  # Without the packages of this environment.
    command = [uv.find_uv_bin(), "run", "--no-project", "--isolated", "--python", interpreter]
    command += [part for package in packages for part in ("--with", package)]
    command += ["python", "-c", INSIDE, "-m", marked, "tests/addons/games/openenv_sessions.py"]
    left_out = ("VIRTUAL_ENV", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    if BEGUN not in run.stdout:
        pytest.skip(f"uv cannot install openenv: {run.stderr.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(rf"\b{passed} passed", run.stdout), run.stdout


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="url='localhost:8000' must begin with http://"):
        OpenEnvClient(url="localhost:8000")
