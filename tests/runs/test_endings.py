"""Runs that end early: a role dies, a launcher is killed, or there is no room for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from rl_sync.checkpoints.ledger import read_consumed, read_ledger
from rl_sync.messages.events import EXPLORER_DIED
from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.processes import lives
from tests.runs.conftest import EMBEDDED, LONG, TEAMS, RunRecord, launch
from tests.runs.living import descendants, ended, processes_of, wait_for

NO_RESTARTS = "--config.launch.restarts=0"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("victim", "mode"),
    [
        pytest.param("explorer1", "asynchronous", marks=pytest.mark.gate),
        pytest.param("explorer1", "one_step_off_policy", marks=pytest.mark.nightly),
        pytest.param("trainer", "asynchronous", marks=pytest.mark.nightly),
        pytest.param("trainer", "one_step_off_policy", marks=pytest.mark.nightly),
        ("master", "asynchronous"),
        pytest.param("replay", "asynchronous", marks=pytest.mark.nightly),
    ],
)
def test_a_role_that_dies_fails_the_run_with_its_name_and_its_log(started, victim, mode):
    """The trainer saves, unless it is the one that dies."""
    never = "--config.checkpoint.every_steps=0"
    process, workdir = started(f"--config.sync.mode={mode}", NO_RESTARTS, never)
    roles = processes_of(workdir)
    assert {"explorer1", "trainer", "master", "replay"} <= set(roles)
    os.kill(roles[victim], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert failure.startswith(f"The run failed: {victim} was killed by SIGKILL")
    assert str(Workdir(workdir).log(victim)) in failure
    assert f"resume --workdir={workdir}" in failure
    assert processes_of(workdir) == {}
    if victim == "explorer1":
        assert list(Workdir(workdir).snapshots.glob("snapshot_*")), "the trainer is whole"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("victim", "mode"), [("trainer/1", "synchronous"), ("explorer2/1", "multi_explorer")]
)
def test_a_program_that_loses_one_of_its_processes_is_lost(started, victim, mode):
    process, workdir = started(f"--config.sync.mode={mode}", *TEAMS, NO_RESTARTS)
    os.kill(processes_of(workdir)[victim], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert failure.startswith(f"The run failed: {victim} was killed by SIGKILL")
    assert str(Workdir(workdir).log(victim)) in failure
    assert processes_of(workdir) == {}
    saved = list(Workdir(workdir).snapshots.glob("snapshot_*"))
    assert saved or victim == "trainer/1", "the trainer is whole and has not saved"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mode", "number"),
    [("asynchronous", 1), pytest.param("multi_explorer", 2, marks=pytest.mark.nightly)],
)
def test_a_dead_explorer_costs_its_leases_and_is_started_again(started, mode, number):
    process, workdir = started(f"--config.sync.mode={mode}", "--config.launch.restarts=1")
    name = f"explorer{number}"

    def leased() -> int:
        entries = read_ledger(workdir)
        return max(lease["lease_id"] for entry in entries for lease in entry["leases"])

    def is_trained_on(after: int) -> bool:
        groups = [group for step in read_consumed(workdir) for group in step["groups"]]
        return any(one["explorer"] == number and one["lease_id"] > after for one in groups)

    wait_for(lambda: is_trained_on(-1), process)
    first = processes_of(workdir)
    os.kill(first[name], signal.SIGKILL)
    wait_for(lambda: processes_of(workdir).get(name) not in (None, first[name]), process)
    before = leased()
    wait_for(lambda: is_trained_on(before), process)
    second = processes_of(workdir)
    assert {**second, name: 0} == {**first, name: 0}, "others were disturbed"
    os.kill(second[name], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    assert f"{name} was killed by SIGKILL. It is started again (1 of 1 times an hour)." in output
    assert f"The run failed: {name} was killed by SIGKILL" in output
    dropped = [entry for entry in read_ledger(workdir) if entry.get("reason") == EXPLORER_DIED]
    assert {lease["explorer"] for entry in dropped for lease in entry["leases"]} <= {number}
    assert list(Workdir(workdir).snapshots.glob("snapshot_*")), "the trainer is whole"


@pytest.mark.nightly
def test_an_explorer_that_died_does_not_change_what_an_exact_run_comes_to(started, runs):
    flags = (
        "--config.sync.mode=synchronous",
        "--config.sync.transfer=checkpoint",
        "--config.trainer.steps=40",
    )
    process, workdir = started(*flags)
    os.kill(processes_of(workdir)["explorer1"], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 0, output
    assert "explorer1 was killed by SIGKILL. It is started again" in output
    assert RunRecord(Workdir(workdir), output).digest == runs.get(EMBEDDED, *flags).digest


@pytest.mark.gate
def test_roles_end_when_the_launcher_is_killed(started):
    """Processes of roles end too, such as the master's judges and Python's helpers."""
    reward = "exact + 0 * format(pattern='.')"  # Not quick, or the master judges alone.
    process, workdir = started(
        "--config.sync.mode=asynchronous",
        "--config.reward.workers=2",
        f"--config.task.reward={reward}",
        forks=False,
    )
    assert {"master", "trainer", "explorer1", "replay"} <= set(processes_of(workdir))
    family = descendants(process.pid)
    assert len(family) >= 7, "four roles, two judges, and the helper of those"
    process.kill()
    deadline = time.monotonic() + 20
    while any(map(lives, family)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [one for one in family if lives(one)] == []
    assert processes_of(workdir) == {}


@pytest.mark.nightly
def test_a_work_directory_that_another_run_holds_is_refused(started):
    flags = ("--config.sync.mode=asynchronous", "--config.sft.steps=4")
    process, workdir = started(*flags, until="sft")
    second = launch(LONG, EMBEDDED, workdir=workdir)
    output = ended(second)
    assert second.returncode == 2
    assert "Another run" in output
    assert str(workdir) in output
    assert process.poll() is None, "the first run was disturbed"


@pytest.mark.nightly
def test_a_stopped_explorer_holds_nobody_up(started):
    """One of two explorers hangs: the other one and the trainer go on without it."""
    process, workdir = started("--config.sync.mode=multi_explorer", "--config.master.lease_secs=3")
    stopped = processes_of(workdir)["explorer1"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        before = read_metrics(workdir, "rl")[-1]["step"]
        wait_for(lambda: read_metrics(workdir, "rl")[-1]["step"] > before + 20, process)
    finally:
        os.kill(stopped, signal.SIGCONT)
    # What it held had expired and was generated again; what it brings late is refused.
    wait_for(lambda: read_metrics(workdir, "rl")[-1]["step"] > before + 40, process)
    os.kill(process.pid, signal.SIGINT)
    output = ended(process)
    run = RunRecord(Workdir(workdir), output)
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"
    balance = run.ledger[-1]
    kept = balance["trained"] + balance["buffered"] + sum(balance["dropped"].values())
    assert balance["leased"] == kept + balance["generating"]


@pytest.mark.gate
@pytest.mark.parametrize(
    "setting", ["master.port", pytest.param("replay.port", marks=pytest.mark.nightly)]
)
def test_a_taken_port_is_refused_and_nothing_is_started(tmp_path, setting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = launch(f"--config.{setting}={port}", EMBEDDED, workdir=tmp_path / "run")
        output = ended(process)
    assert process.returncode == 2
    assert f"Port {port} ({setting})" in output
    assert f"--config.{setting}" in output
    assert processes_of(tmp_path / "run") == {}


@pytest.mark.gate
def test_the_resolved_config_and_every_record_stand_in_the_work_directory(runs):
    run = runs.get("--config.sync.mode=asynchronous", EMBEDDED, apart=True)
    names = {path.name for path in Path(run.workdir).iterdir()}
    assert {"config.json", "metrics.jsonl", "tensorboard", "spans", "logs", "checkpoints"} <= names
    assert json.loads(run.workdir.config.read_text())["sync"]["mode"] == "asynchronous"
    logs = {path.stem for path in run.workdir.logs.iterdir()}
    assert logs == {"master", "trainer", "explorer1", "replay"}
    for phrase in (
        "Held-out accuracy before RL",
        "Held-out accuracy after RL",
        "tokens/s",
        "logs:",
    ):
        assert phrase in run.output


@pytest.mark.parametrize(
    ("together", "advised"),
    [
        pytest.param(False, {"trainer"}, marks=pytest.mark.gate),
        pytest.param(True, {"trainer", "explorer"}, marks=pytest.mark.nightly),
    ],
)
def test_a_full_device_ends_the_run_with_what_needs_less(tmp_path, together, advised):
    process = launch(
        EMBEDDED,
        "--config.task.name=tests/runs/full_device.py:rows",
        "--config.task.reward=format(pattern='..?')",
        f"--config.launch.colocate={str(together).lower()}",
        workdir=tmp_path / "run",
        forks=False,
    )
    output = ended(process)
    assert process.returncode == 1
    assert "no more memory: Out of memory while trying to allocate 8589934592 bytes." in output
    assert "It is started again" not in output, "a restart makes no room"
    assert "Traceback" not in output
    lines = [line for line in output.splitlines() if " in place of " in line]
    assert {line.rpartition("of the ")[2] for line in lines} == advised
    assert any(line.startswith("  --config.trainer.microbatch_rows=") for line in lines)
