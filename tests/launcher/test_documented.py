"""The lines in BUILD.md that plan real models."""

import re
import shlex
from pathlib import Path

import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.processes import run_directory
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.targets import target
from rl_sync.roles.assembly import wiring

TEXT = (Path(__file__).parents[2] / "BUILD.md").read_text()
LINES = re.findall(r"python -m launcher (plan (?:.*\\\n)*.*--compile=\S+)", TEXT)


def test_there_are_three():
    assert len(LINES) == 3


@pytest.mark.gate
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.rpartition("=")[2])
def test_they_are_plans_whose_roles_fit_their_target(line, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    arguments = command_line.parse(shlex.split(line.replace("\\\n", "")))
    settings = run_directory.settings_of(arguments.config.to_dict())
    task = wiring.load_task(settings)
    assert task.row_tokens == 1024
    where = target(arguments.flags["compile"])
    room, platform = where.chip.memory, where.chip.platform
    assert settings.trainer.mesh.shape.devices <= where.count
    assert settings.explorer.mesh.shape.devices <= where.count
    assert step_estimate(settings, task, platform).peak < room
    assert explorer_estimate(settings, task, platform).peak < room
