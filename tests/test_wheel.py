"""The package, installed as a wheel and in place, works in a directory of a user's own.

There the names `configs` and `launcher` are the user's. What is installed is built, and its
dependencies come from the package index or from what uv has in its cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
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
pytestmark = pytest.mark.nightly

PARTS = {"rl_sync": "", "launch/launcher": "rl_sync/launcher", "configs": "rl_sync/configs"}
# Files of a user who has packages of the same names as folders of the clone.
OWN = {
    "configs/__init__.py": "",
    "configs/sizes.py": "STEPS = 2",
    "configs/mine.py": """
from configs import sizes
from rl_sync.configs import arithmetic


def get_config():
    config = arithmetic.get_config()
    config.name = "mine"
    config.trainer.steps = sizes.STEPS
    return config
""",
    "configs/lost.py": "from configs import base",
    "launcher/__init__.py": "raise RuntimeError('The launcher is the user's.')",
}
TRAIN = """
import json, rl_sync
changes = json.loads('''%s''')
result = rl_sync.train("configs/mine.py", workdir="runs/first", changes=changes, quiet=True)
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
    "sft.steps": 2,
    "sft.probe_problems": 16,
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
    return [path for path in done.stdout.splitlines() if os.path.lexists(ROOT / path)]


def files(folder):
    """Returns those that are no links to folders."""
    return [path for path in tracked(folder) if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, which is made from the source distribution, which is made from the clone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in tracked("."):  # Builds leave files behind, and take up those of earlier ones.
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path, follow_symlinks=False)
    subprocess.run([uv.find_uv_bin(), "build", "-q", "--out-dir", out, source], check=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module", params=["wheel", "in place"])
def there(request, tmp_path_factory):
    """Runs a command in an environment that has the package alone, in a user's directory."""
    what = [request.getfixturevalue("wheel")] if request.param == "wheel" else ["-e", ROOT]
    environment, own = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("own")
    for name, text in OWN.items():
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text(text)
    binaries = environment / "bin"
    program = uv.find_uv_bin()
    subprocess.run([program, "venv", "-q", "--clear", "--python", sys.executable, environment],
                   check=True)  # fmt: skip
    subprocess.run(
        [program, "pip", "install", "-q", "--python", binaries / "python", *what], check=True
    )
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables["PATH"] = f"{binaries}{os.pathsep}{variables['PATH']}"

    def run(*words, status=0, start=False):
        command = [str(binaries / words[0]), *words[1:]]
        if start:
            return subprocess.Popen(
                command, cwd=own, env=variables, stdout=subprocess.PIPE, text=True
            )
        done = subprocess.run(
            command, cwd=own, env=variables, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def test_the_wheel_has_every_file_of_its_packages_and_no_other(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {
        posixpath.join(package, path.removeprefix(f"{folder}/") if package else path)
        for folder, package in PARTS.items()
        for path in files(folder)
    }
    assert {name.split("/")[0] for name in names} == {"rl_sync"}


def test_commands_work_outside_the_clone(there):
    assert there("rl-sync", "--help").startswith("Usage: rl-sync [COMMAND]")
    assert there("python", "-m", "rl_sync", "--help").startswith("Usage: python -m rl_sync")
    assert "optimizer.learning_rate: number" in there("python", "-m", "rl_sync", "settings", "lea")
    names = [one["name"] for one in json.loads(there("rl-sync", "configs", "--json"))]
    assert "arithmetic" in names
    wrong = there("rl-sync", "plan", "--config=configs/arithmetic.py", status=2)
    assert "did you mean --config=arithmetic?" in wrong
    unknown = there("rl-sync", "plan", "--config=zzz.py", status=2)
    assert f"Those of the package are {', '.join(names)}." in unknown
    assert "Mode asynchronous" in there(
        "rl-sync", "plan", "--config=arithmetic", "--config.sync.mode=asynchronous"
    )
    assert "complete -F _rl_sync rl-sync" in there("rl-sync", "completion", "bash")


def test_configs_and_launcher_are_the_users_own(there):
    assert "2 trainer steps" in there("rl-sync", "plan", "--config=configs/mine.py")
    assert "2 trainer steps" in there("python", "-m", "rl_sync", "plan", "--config=configs/mine.py")
    lost = there("rl-sync", "plan", "--config=configs/lost.py", status=2)
    assert "from rl_sync.configs import base" in lost
    assert "the user's" in there("python", "-m", "launcher", status=1)
    assert there("python", "-c", "import configs.sizes as own; print(own.STEPS)") == "2\n"


def test_a_run_its_timeline_and_its_page_work_outside_the_clone(there):
    assert there("python", "-c", TRAIN % json.dumps(CHANGES)).split() == ["1", "2"]
    pictures = there("rl-sync", "timeline", "--workdir=runs/first").split()
    assert [Path(path).name for path in pictures] == ["timeline.png", "timeline.svg", "trace.json"]
    page = there("rl-sync", "page", "--workdir=runs/first", start=True)
    try:
        address = re.search(r"http://\S+", page.stdout.readline())[0]
        site, token = address.split("?")[0].rstrip("/"), address.partition("?")[2]
        static = files("rl_sync/page/static")
        for path in ("/", *(f"/static/{Path(name).name}" for name in static)):
            with contextlib.closing(urllib.request.urlopen(f"{site}{path}?{token}")) as answer:
                assert answer.status == 200
                assert answer.read()
    finally:
        page.terminate()
        page.wait(30)
        page.stdout.close()
