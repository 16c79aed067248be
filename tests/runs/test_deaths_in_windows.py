"""A death within any activity of a role, in any mode and over any transfer, changes nothing.

In each mode each activity is struck over one transfer.
"""

from __future__ import annotations

import random
import signal

import pytest

from rl_sync.checkpoints.audit import audit
from rl_sync.records.chaos_windows import VARIABLE, arm
from rl_sync.records.json_lines import read_json_lines
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    RunRecord,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.living import ended, processes_of, wait_for

STEPS = 100
TRANSFERS = ("server", "checkpoint", "collective")
WINDOWS = {
    "trainer": ("train", "snapshot", "sync", "wait"),
    "explorer1": ("rollout", "score", "insert", "sync", "wait"),
}
MODES = {
    "synchronous": flags("synchronous"),
    "two steps ahead": flags("custom", interval=1, offset=2),
    "asynchronous": flags("asynchronous"),
}


@pytest.mark.nightly
@pytest.mark.timeout(600)  # Each death costs the start of a process.
@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_whose_roles_die_within_each_of_their_activities_ends_well(
    started, runs, tmp_path, monkeypatch, mode, transfer
):
    folder, draw = tmp_path / "windows", random.Random(mode)
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    given = (
        *MODES[mode],
        f"--config.sync.transfer={transfer}",
        f"--config.trainer.steps={STEPS}",
        "--config.checkpoint.every_steps=2",
        "--config.launch.restarts=50",
    )
    process, workdir = started(*given, forks=False)
    windows = [
        (role, window)
        for role, named in WINDOWS.items()
        for window in named
        if window != "wait" or mode != "asynchronous"  # Hardly anybody is waited for.
    ]
    draw.shuffle(windows)
    windows = windows[TRANSFERS.index(transfer) :: len(TRANSFERS)]
    for role, window in windows:
        before = processes_of(workdir)[role]
        armed = arm(folder, role, window, signal.SIGKILL, draw.uniform(0.0, 0.01))
        wait_for(lambda armed=armed: not armed.exists(), process)
        wait_for(
            lambda role=role, before=before: processes_of(workdir).get(role) not in (None, before),
            process,
        )
    output = ended(process)
    assert process.returncode == 0, output
    restarts = read_json_lines(Workdir(workdir).restarts)
    assert len(restarts) >= len(windows)
    run = RunRecord(Workdir(workdir), output)
    assert audit(run.settings, workdir) == []
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    if mode != "asynchronous":
        assert run.digest == runs.get(EMBEDDED, *given).digest
