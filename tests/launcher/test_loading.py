"""Imports: a module that is loaded without need makes every start of a run longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = "import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rl_sync.launcher.__main__", ["jax", "matplotlib", "tensorboardX", "grpc"]),
        (
            "rl_sync.launcher.commands.run",
            ["matplotlib", "tensorboardX", "orbax", "rl_sync.roles.trainer.actor"],
        ),
        ("rl_sync.roles.process", ["jax"]),
        ("rl_sync.roles.master.service", ["matplotlib", "orbax", "rl_sync.roles.trainer.actor"]),
        (
            "rl_sync.roles.build",
            ["matplotlib", "tensorboardX", "orbax", "rl_sync.roles.master.service"],
        ),
    ],
)
def test_a_process_loads_what_it_uses_alone(module, heavy):
    command = [sys.executable, "-c", CODE.format(module=module, heavy=heavy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []
