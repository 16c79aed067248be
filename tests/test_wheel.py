"""The wheel: it holds all files, and works in an environment of its own, outside the clone.

It is built and installed from the package index, or from what uv has in its cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow

PARTS = {"rl_sync": "rl_sync", "launch/launcher": "launcher", "configs": "configs"}
TRAIN = """
import json, rl_sync
changes = json.loads('''%s''')
result = rl_sync.train("arithmetic", workdir="runs/first", changes=changes, quiet=True)
print(*(line["step"] for line in result.metrics()))
"""
CHANGES = {
    "trainer.steps": 2,
    "trainer.groups_per_step": 4,
    "trainer.group_size": 2,
    "model.embed_dim": 32,
    "model.num_layers": 1,
    "model.head_dim": 8,
    "model.mlp_dim": 64,
    "warm_up.steps": 2,
    "warm_up.probe_problems": 16,
    "task.arithmetic.held_out_problems": 16,
    "evaluation.problems": 16,
    "algorithm.over_sampling": 1.0,
    "replay.backend": "embedded",
    "reward.workers": 0,
}


def tracked(folder):
    """Returns the files below a folder that belong to the repository, or are to."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.splitlines() if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, which is made from the source distribution, which is made from the clone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in tracked("."):  # Builds leave files behind, and take up those of earlier ones.
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    subprocess.run([uv.find_uv_bin(), "build", "-q", "--out-dir", out, source], check=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def there(wheel, tmp_path_factory):
    """Runs a command in an environment that has the wheel alone, in an empty directory."""
    environment, empty = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    binaries = environment / "bin"
    program = uv.find_uv_bin()
    subprocess.run([program, "venv", "-q", "--clear", "--python", sys.executable, environment],
                   check=True)  # fmt: skip
    subprocess.run(
        [program, "pip", "install", "-q", "--python", binaries / "python", wheel], check=True
    )
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables["PATH"] = f"{binaries}{os.pathsep}{variables['PATH']}"

    def run(*words, status=0, start=False):
        command = [str(binaries / words[0]), *words[1:]]
        if start:
            return subprocess.Popen(
                command, cwd=empty, env=variables, stdout=subprocess.PIPE, text=True
            )
        done = subprocess.run(
            command, cwd=empty, env=variables, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def test_the_wheel_has_every_file_of_its_packages_and_no_other(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {
        path.replace(folder, package, 1)
        for folder, package in PARTS.items()
        for path in tracked(folder)
    }


def test_commands_work_outside_the_clone(there):
    assert there("rl-sync", "--help").startswith("usage: rl-sync [COMMAND]")
    assert there("python", "-m", "launcher", "--help").startswith("usage: python -m launcher")
    assert "optimizer.learning_rate: number" in there("python", "-m", "launcher", "settings", "lea")
    names = [one["name"] for one in json.loads(there("rl-sync", "configs", "--json"))]
    assert "arithmetic" in names
    wrong = there("rl-sync", "plan", "--config=configs/arithmetic.py", status=2)
    assert "did you mean --config=arithmetic?" in wrong
    unknown = there("rl-sync", "plan", "--config=zzz.py", status=2)
    assert f"Those of the package are {', '.join(names)}." in unknown
    assert "Mode asynchronous" in there(
        "rl-sync", "plan", "--config=arithmetic", "--config.sync.mode=asynchronous"
    )


def test_a_run_its_timeline_and_its_page_work_outside_the_clone(there):
    assert there("python", "-c", TRAIN % json.dumps(CHANGES)).split() == ["1", "2"]
    pictures = there("rl-sync", "timeline", "--workdir=runs/first").split()
    assert [Path(path).name for path in pictures] == ["timeline.png", "timeline.svg", "trace.json"]
    page = there("rl-sync", "page", "--workdir=runs/first", start=True)
    try:
        address = re.search(r"http://\S+", page.stdout.readline())[0]
        site, token = address.split("?")[0].rstrip("/"), address.partition("?")[2]
        files = tracked("rl_sync/page/static")
        for path in ("/", *(f"/static/{Path(name).name}" for name in files)):
            with contextlib.closing(urllib.request.urlopen(f"{site}{path}?{token}")) as answer:
                assert answer.status == 200
                assert answer.read()
    finally:
        page.terminate()
        page.wait(30)
        page.stdout.close()
