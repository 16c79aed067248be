"""Runs that end early: a role dies, the user interrupts, the user resumes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from rl_sync.actors.events import EXPLORER_DIED
from rl_sync.observe.metrics import read_metrics
from rl_sync.observe.spans import SpanKind
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.process import ServerProcess, start_server
from rl_sync.replay.tables import queue
from rl_sync.storage.ledger import read_consumed, read_ledger
from rl_sync.workdir import Workdir
from tests.rewards.test_pool import lives
from tests.runs.conftest import TEAMS, TIMEOUT_SECS, RunRecord, launch

LONG = "--config.trainer.steps=100000"
NO_RESTARTS = "--config.launch.explorer_restarts=0"
EMBEDDED = "--config.replay.backend=embedded"


@pytest.fixture
def started(tmp_path):
    """Starts runs, and makes sure that no process of them is left."""
    processes = []

    def start(*flags: str, until: str = "rl") -> tuple[subprocess.Popen[str], Path]:
        workdir = tmp_path / "run"
        process = launch(LONG, EMBEDDED, *flags, workdir=workdir, start_new_session=True)
        processes.append(process)
        wait_for(lambda: reached(workdir, until), process)
        return process, workdir

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for(condition, process):
    deadline = time.monotonic() + TIMEOUT_SECS
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "the run does not get there"
        time.sleep(0.1)


def reached(workdir: Path, phase: str) -> bool:
    """Says whether the warm-up is over, or a few RL steps are done."""
    least = {"warm_up": 1, "rl": 3}[phase]
    return Workdir(workdir).metrics.exists() and len(read_metrics(workdir, phase)) >= least


def processes_of(workdir: Path) -> dict[str, int]:
    """Finds the run's living processes, by role, from their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        words = dict(word[2:].split("=", 1) for word in command if re.match("--[a-z]+=", word))
        if words.get("workdir") == str(workdir) and "role" in words:
            process = words.get("process", "0")
            name = words["role"] + (f"/{process}" if process != "0" else "")
            found[name] = int(entry.name)
        if "rl_sync.replay.embedded_server" in command and any(str(workdir) in w for w in command):
            found["replay"] = int(entry.name)
    return found


def descendants(process: int) -> set[int]:
    """Returns the processes that a process has started, and those that these have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
    found: set[int] = set()
    while more := {one for one, of in parents.items() if of in {process, *found}} - found:
        found |= more
    return found


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    return output


@pytest.mark.parametrize(
    ("victim", "mode"),
    [
        ("explorer1", "asynchronous"),
        ("explorer1", "one_step_off_policy"),
        ("trainer", "asynchronous"),
        ("trainer", "one_step_off_policy"),
        ("master", "asynchronous"),
        ("replay", "asynchronous"),
    ],
)
def test_a_role_that_dies_fails_the_run_with_its_name_and_its_log(started, victim, mode):
    process, workdir = started(f"--config.sync.mode={mode}", NO_RESTARTS)
    roles = processes_of(workdir)
    assert {"explorer1", "trainer", "master", "replay"} <= set(roles)
    os.kill(roles[victim], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert failure.startswith(f"The run failed: {victim} was killed by SIGKILL")
    assert str(Workdir(workdir).log(victim)) in failure
    assert f"--config.workdir={workdir}" in failure
    assert processes_of(workdir) == {}


@pytest.mark.slow
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


def test_the_trainer_saves_when_an_explorer_has_died(started):
    process, workdir = started(
        "--config.sync.mode=asynchronous", "--config.checkpoint.every_steps=0", NO_RESTARTS
    )
    os.kill(processes_of(workdir)["explorer1"], signal.SIGKILL)
    ended(process)
    assert list(Workdir(workdir).snapshots.glob("snapshot_*"))


def test_a_dead_explorer_costs_its_leases_and_is_started_again(started):
    process, workdir = started(
        "--config.sync.mode=multi_explorer",
        "--config.launch.explorer_restarts=1",
    )

    def trained_by_second(after: int) -> bool:
        groups = [group for step in read_consumed(workdir)[after:] for group in step["groups"]]
        return any(group["explorer"] == 2 for group in groups)

    wait_for(lambda: trained_by_second(0), process)
    first = processes_of(workdir)
    os.kill(first["explorer2"], signal.SIGKILL)
    wait_for(
        lambda: processes_of(workdir).get("explorer2") not in (None, first["explorer2"]), process
    )
    steps = len(read_consumed(workdir))
    wait_for(lambda: trained_by_second(steps), process)
    second = processes_of(workdir)
    assert {**second, "explorer2": 0} == {**first, "explorer2": 0}, "others were disturbed"
    os.kill(second["explorer2"], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    assert "explorer2 was killed by SIGKILL. It is started again (1 of 1 times)." in output
    assert "The run failed: explorer2 was killed by SIGKILL" in output
    dropped = [entry for entry in read_ledger(workdir) if entry.get("reason") == EXPLORER_DIED]
    assert {lease["explorer"] for entry in dropped for lease in entry["leases"]} <= {2}
    assert list(Workdir(workdir).snapshots.glob("snapshot_*")), "the trainer is whole"


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


def test_roles_end_when_the_launcher_is_killed(started):
    """Processes of roles end too, such as the master's judges and Python's helpers."""
    process, workdir = started("--config.sync.mode=asynchronous", "--config.reward.workers=2")
    assert {"master", "trainer", "explorer1", "replay"} <= set(processes_of(workdir))
    family = descendants(process.pid)
    assert len(family) >= 7, "four roles, two judges, and the helper of those"
    process.kill()
    deadline = time.monotonic() + 20
    while any(map(lives, family)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [one for one in family if lives(one)] == []
    assert processes_of(workdir) == {}


@pytest.mark.parametrize("mode", ["asynchronous", "one_step_off_policy"])
def test_an_interrupted_run_saves_and_goes_on_where_it_was(started, mode):
    flag = f"--config.sync.mode={mode}"
    process, workdir = started(flag)
    os.killpg(process.pid, signal.SIGINT)  # As a terminal does it: to the whole group.
    output = ended(process)
    assert process.returncode == 130, output
    assert f"--config.workdir={workdir}" in output
    assert processes_of(workdir) == {}
    before = RunRecord(Workdir(workdir), output)
    balance = before.ledger[-1]
    kept = balance["trained"] + balance["buffered"] + sum(balance["dropped"].values())
    assert balance["leased"] == kept
    assert balance["generating"] == 0
    last = before.consumed[-1]["step"]
    assert len(list(Workdir(workdir).snapshots.glob(f"snapshot_*{last}"))) == 1

    steps = last + 6
    again = launch(flag, EMBEDDED, f"--config.trainer.steps={steps}", workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from trainer step {last}" in output
    run = RunRecord(Workdir(workdir), output)
    assert [step["step"] for step in run.consumed] == list(range(1, steps + 1))
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"
    schedule = run.settings.schedule
    for step in run.consumed:
        for version in run.versions(step):
            assert 0 <= schedule.staleness(step["step"], version) <= schedule.staleness_bound


@pytest.mark.slow
def test_an_interrupted_warm_up_goes_on_where_it_was_and_comes_to_the_same_bits(started, runs):
    flags = ("--config.warm_up.steps=300", "--config.warm_up.probe_every_steps=100")
    process, workdir = started(*flags, until="warm_up")
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert processes_of(workdir) == {}
    step = int(re.search(r"To go on from warm-up step (\d+),", output)[1])
    assert 100 <= step < 300

    short = "--config.trainer.steps=2"
    again = launch(*flags, EMBEDDED, short, workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from warm-up step {step}." in output
    assert not Workdir(workdir).warm_up_snapshots.exists()
    whole = runs.get(*flags, EMBEDDED, short)
    assert RunRecord(Workdir(workdir), output).digest == whole.digest
    probed = [line["step"] for line in read_metrics(workdir, "warm_up")]
    assert probed == [100, 200, 300]


@pytest.mark.parametrize("mode", ["asynchronous", "one_step_off_policy"])
def test_a_run_that_goes_on_after_a_crash_has_each_step_and_each_lease_once(started, mode):
    flags = (f"--config.sync.mode={mode}", "--config.checkpoint.every_steps=4")
    process, workdir = started(*flags)

    def saved() -> int:
        names = Workdir(workdir).snapshots.glob("snapshot_*")
        return max((int(path.name.rpartition("_")[2]) for path in names), default=0)

    wait_for(lambda: 0 < saved() < read_consumed(workdir)[-1]["step"], process)
    process.kill()
    deadline = time.monotonic() + 20
    while processes_of(workdir) and time.monotonic() < deadline:
        time.sleep(0.1)
    start, steps = saved(), read_consumed(workdir)[-1]["step"] + 4

    again = launch(*flags, EMBEDDED, f"--config.trainer.steps={steps}", workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from trainer step {start}." in output
    run = RunRecord(Workdir(workdir), output)
    every = list(range(1, steps + 1))
    assert [step["step"] for step in run.consumed] == every
    assert [line["step"] for line in read_metrics(workdir, "rl")] == every
    assert [span.step for span in run.spans(SpanKind.TRAIN)] == every
    leased, trained, dropped = (run.leases(event) for event in ("leased", "trained", "dropped"))
    assert set(leased.values()) == set(run.leases("buffered").values()) == {1}
    assert trained + dropped == leased, "a lease ended in no way, or in two"
    consumed = [group["lease_id"] for step in run.consumed for group in step["groups"]]
    assert sorted(consumed) == sorted(trained)
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"


def test_a_work_directory_that_another_run_holds_is_refused(started):
    process, workdir = started("--config.sync.mode=asynchronous", until="warm_up")
    second = launch(LONG, EMBEDDED, workdir=workdir)
    output = ended(second)
    assert second.returncode == 2
    assert "Another run" in output
    assert str(workdir) in output
    assert process.poll() is None, "the first run was disturbed"


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


def test_a_taken_port_is_refused_and_nothing_is_started(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = launch(f"--config.master.port={port}", EMBEDDED, workdir=tmp_path / "run")
        output = ended(process)
    assert process.returncode == 2
    assert f"Port {port} (master.port)" in output
    assert "--config.master.port" in output
    assert processes_of(tmp_path / "run") == {}


def test_a_replay_server_that_cannot_start_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    process = launch(workdir=tmp_path / "run")
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert "--config.replay.backend=embedded" in failure
    assert processes_of(tmp_path / "run") == {}


@pytest.fixture
def by_hand(tmp_path):
    """Starts a replay server as a user may do it, with a table of so many groups."""
    servers = []

    def start(max_size: int) -> ServerProcess:
        tables = [queue("groups", max_size)]
        server = start_server("embedded", tables, 0, log_path=tmp_path / f"{max_size}.log")
        server.wait_ready(30)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def test_a_server_started_by_hand_serves_a_run_and_outlives_it(by_hand, runs):
    server = by_hand(18)
    with ReplayClient(server.address) as replay:
        left_over = {"tokens": np.zeros(3, np.int32)}
        replay.insert("groups", left_over, timeout_secs=10)
        run = runs.get(f"--config.replay.address={server.address}")
        assert replay.info()["groups"].current_size == 0
    assert len(run.consumed) == run.settings.trainer.steps
    assert server.poll() is None
    assert not run.workdir.log("replay").exists()


def test_a_server_by_hand_that_does_not_fit_is_refused_before_anything_starts(by_hand, tmp_path):
    server = by_hand(2)
    flag = f"--config.replay.address={server.address}"
    for part in ("--tables '[{", "cannot be reached"):
        process = launch(flag, workdir=tmp_path / "run")
        output = ended(process)
        assert process.returncode == 2
        assert part in output
        assert "Traceback" not in output
        assert not (tmp_path / "run").exists()
        server.stop()


def test_the_resolved_config_and_every_record_stand_in_the_work_directory(runs):
    run = runs.get("--config.sync.mode=asynchronous")
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
