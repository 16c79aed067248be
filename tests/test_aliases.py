"""`configs` and `launcher` are second names of packages in the clone, and nobody's elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAME = """
{first}
import configs, launcher, configs.base, launcher.commands.compare
from configs import arithmetic
from configs.base import get_config
from launcher.commands.compare import execute
import rl_sync.configs.arithmetic, rl_sync.configs.base, rl_sync.launcher.commands.compare
assert configs is rl_sync.configs and configs.base is rl_sync.configs.base
assert arithmetic is rl_sync.configs.arithmetic and get_config is rl_sync.configs.base.get_config
assert launcher is rl_sync.launcher and execute is rl_sync.launcher.commands.compare.execute
assert configs.base.__name__ == configs.base.__spec__.name == "rl_sync.configs.base"
"""
OWN = """
from configs import sizes
from rl_sync.configs import base


def get_config():
    config = base.get_config()
    config.trainer.steps = sizes.STEPS
    return config
"""


def python(*words, at):
    """Runs Python with the clone's package in a directory."""
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=at, capture_output=True, text=True, timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.samples("", "import launcher")
@pytest.mark.parametrize(
    "first", ["", "import rl_sync.configs.base", "import launcher", "from configs import base"]
)
def test_both_names_give_the_same_modules_in_the_clone(first):
    done = python("-c", SAME.format(first=first), at=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["launcher", "rl_sync", "rl_sync.launcher"])
def test_the_program_goes_by_each_of_its_names_in_the_clone(name):
    done = python("-m", name, "--help", at=ROOT)
    assert done.stdout.startswith(f"Usage: python -m {name} [COMMAND]")
    assert done.stderr == ""


def test_modules_of_the_launcher_run_by_the_second_name():
    done = python("-W", "error", "-m", "launcher.commands.metric_list", at=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_that_is_not_there_is_missed_by_the_second_name():
    done = python("-c", "import configs.nothing", at=ROOT)
    assert "No module named 'configs.nothing'" in done.stderr


@pytest.mark.nightly
def test_a_users_own_packages_keep_these_names(tmp_path):
    files = {"configs/sizes.py": "STEPS = 7", "configs/mine.py": OWN, "launcher.py": "1 / 0"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = python("-m", "rl_sync", "plan", "--config=configs/mine.py", at=tmp_path)
    assert "7 trainer steps" in done.stdout, done.stderr
    (tmp_path / "configs/mine.py").write_text("from configs import base")
    lost = python("-m", "rl_sync", "plan", "--config=configs/mine.py", at=tmp_path)
    assert lost.returncode == 2
    assert "imported by `from rl_sync.configs import base`" in lost.stderr
