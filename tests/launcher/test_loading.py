"""Imports: what a start needs, and what it loads.

A module that is loaded without need makes every start of a run longer.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = "import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"

ADDONS = [
    f"rl_sync.addons.{folder.name}"
    for folder in sorted((ROOT / "rl_sync/addons").iterdir())
    if folder.is_dir() and folder.name not in ("toys", "__pycache__")
]
"""All add-ons but tasks, whose settings are in every config."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rl_sync.launcher.__main__", ["jax", "matplotlib", "tensorboardX", "grpc"]),
        (
            "rl_sync.launcher.commands.run",
            ["matplotlib", "tensorboardX", "orbax", "rl_sync.roles.trainer.actor", *ADDONS],
        ),
        ("rl_sync.roles.process", ["jax"]),
        (
            "rl_sync.roles.master.service",
            ["matplotlib", "orbax", "rl_sync.roles.trainer.actor", *ADDONS],
        ),
        (
            "rl_sync.roles.assembly.build",
            ["matplotlib", "tensorboardX", "orbax", "rl_sync.roles.master.service", *ADDONS],
        ),
    ],
)
def test_a_process_loads_what_it_uses_alone(module, heavy):
    command = [sys.executable, "-c", CODE.format(module=module, heavy=heavy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-S", "-m", "launcher"], r"lacks the package absl: install it (`pip install -r"),
        (
            [
                "-c",
                "import sys, runpy; sys.version_info = (3, 9, 18, 'final', 0);"
                "runpy.run_module('launcher', run_name='__main__')",
            ],
            "rl_sync needs Python 3.11 or newer, and ",
        ),
    ],
)
def test_a_python_without_packages_or_too_old_is_told_in_one_line(words, message):
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("error: "), message in line) == (2, True, True)


def test_the_program_that_checks_the_version_is_read_by_old_pythons():
    ast.parse((ROOT / "launcher.py").read_text(), feature_version=(3, 6))
