"""Servers of a run are killed and started again: the run ends well, as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    RunRecord,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
)
from tests.runs.living import ended, processes_of

ASYNCHRONOUS = ("--config.sync.mode=asynchronous", "--config.trainer.steps=300")
SHORT = ("--config.sync.mode=asynchronous", "--config.trainer.steps=100")
SERVED = (
    "--config.sync.mode=synchronous",
    "--config.sync.transfer=server",
    "--config.trainer.steps=60",
)
COLLECTIVE = (
    "--config.sync.mode=one_step_off_policy",
    "--config.sync.transfer=collective",
    "--config.trainer.steps=60",
)
RESTARTS = "--config.launch.restarts=50"


@pytest.mark.parametrize(
    ("victim", "flags", "kills", "seed"),
    [
        pytest.param("master", SHORT, 2, 1, marks=pytest.mark.gate),
        pytest.param("master", SERVED, 3, 2, marks=pytest.mark.nightly),
        pytest.param("master", COLLECTIVE, 3, 3, marks=pytest.mark.nightly),
        pytest.param("master", ASYNCHRONOUS, 6, 4, marks=pytest.mark.nightly),
        pytest.param("replay", ASYNCHRONOUS, 3, 5, marks=pytest.mark.nightly),
        pytest.param("replay", COLLECTIVE, 2, 6, marks=pytest.mark.nightly),
    ],
)
def test_a_run_whose_server_is_killed_again_and_again_ends_well(
    started, runs, victim, flags, kills, seed
):
    process, workdir = started(*flags, RESTARTS)
    draw, killed = random.Random(seed), set()
    while process.poll() is None and len(killed) < kills:
        time.sleep(draw.uniform(0.2, 3.0))
        found = processes_of(workdir).get(victim)
        if found is not None and found not in killed:
            os.kill(found, signal.SIGKILL)
            killed.add(found)
    output = ended(process)
    assert process.returncode == 0, output
    assert f"{victim} was killed by SIGKILL. It is started again (1 of 50 times" in output
    restarts = read_json_lines(Workdir(workdir).restarts)
    assert [line["role"] for line in restarts] == [victim] * len(killed)
    # A server that is killed again, or that the run no longer needs, before it serves has none.
    assert all(0 < line.get("lost_secs", 1.0) < 100 for line in restarts)
    run = RunRecord(Workdir(workdir), output)
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    metrics = read_metrics(workdir, "rl")
    assert [line["step"] for line in metrics] == [*range(1, run.settings.trainer.steps + 1)]
    assert all(line["reward_mean"] is not None for line in metrics)
    if flags not in (ASYNCHRONOUS, SHORT):
        assert run.digest == runs.get(EMBEDDED, *flags).digest
