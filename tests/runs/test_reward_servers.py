"""Reward servers as processes of their own, and runs that use them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.processes import lives
from tests.runs.conftest import CONFIG, EMBEDDED, ROOT, TIMEOUT_SECS, RunRecord, launch

HOST = "127.0.0.1"


@pytest.fixture
def serve(tmp_path):
    """Starts reward servers; returns each with its address."""
    servers = []

    def start(*flags: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "launcher", "reward", f"--config={CONFIG}"]
        command += [f"--secret-path={tmp_path / 'secret'}", "--config.reward.workers=1", *flags]
        server = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        servers.append(server)
        for line in server.stdout:
            if line.startswith("Serving at "):
                return server, line.split()[2].rstrip(";")
        raise AssertionError("the server has ended")

    yield start
    for server in servers:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def workers_of(server: subprocess.Popen[str]) -> list[int]:
    """Finds the processes that a server has started."""
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
        own = [int(one) for one in file.read().split()]
    threads = os.listdir(f"/proc/{server.pid}/task")
    for thread in threads:
        with open(f"/proc/{server.pid}/task/{thread}/children") as file:
            own += [int(one) for one in file.read().split()]
    return sorted(set(own))


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_cleanly_when_it_is_asked_to(serve, number):
    server, _ = serve("--config.task.reward=exact + 0 * format(pattern='.')")
    workers = workers_of(server)
    assert workers
    os.killpg(server.pid, number)  # As a terminal does.
    output, _ = server.communicate(timeout=30)
    assert server.returncode == 0
    assert output.splitlines()[-1] == "The reward server has ended."
    deadline = time.monotonic() + 10
    while any(map(lives, workers)):
        assert time.monotonic() < deadline, "its workers stay"
        time.sleep(0.05)


@pytest.mark.gate
def test_a_server_whose_workers_cannot_prepare_the_reward_does_not_serve(tmp_path):
    command = [sys.executable, "-m", "launcher", "reward", f"--config={CONFIG}"]
    command += [f"--secret-path={tmp_path / 'secret'}", "--config.reward.workers=1"]
    command += ["--config.task.reward=exact + tests.rewards.own:NeedsDevices"]
    server = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECS)
    assert server.returncode == 2
    assert "Serving at" not in server.stdout
    assert "a mesh of 64 devices does not fit 1 device." in server.stderr.splitlines()[-1]


@pytest.mark.gate
def test_a_run_goes_on_when_one_of_its_reward_servers_is_killed(serve, tmp_path):
    victim, first = serve()
    _, second = serve()
    workdir = Workdir(tmp_path / "run")
    process = launch(
        EMBEDDED,
        "--config.sync.mode=asynchronous",
        "--config.trainer.steps=16",
        f"--config.reward.addresses={first},{second}",
        f"--config.reward.secret_path={tmp_path / 'secret'}",
        workdir=workdir.path,
    )
    deadline = time.monotonic() + TIMEOUT_SECS
    while not workdir.metrics.exists() or len(read_metrics(workdir, "rl")) < 3:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(victim.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    assert process.returncode == 0, output
    run = RunRecord(workdir, output)
    assert len(run.consumed) == 16
    assert f"The reward server at {first} is lost" in workdir.log("master").read_text()
    lines = run.judged
    assert all(line["score"] is not None for line in lines)
    of_leases = [line["lease"] for line in lines if line["lease"] >= 0]
    trained = [lease for step in run.consumed for lease in (g["lease_id"] for g in step["groups"])]
    assert all(of_leases.count(lease) == 2 for lease in trained), "each completion counts once"


@pytest.mark.gate
def test_a_run_whose_reward_server_has_another_reward_is_refused(serve, tmp_path):
    _, address = serve("--config.task.reward=final_answer")
    process = launch(
        f"--config.reward.addresses={address}",
        f"--config.reward.secret_path={tmp_path / 'secret'}",
        workdir=tmp_path / "run",
    )
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    assert process.returncode == 2
    assert "its reward is 'final_answer'" in output


@pytest.mark.nightly
def test_a_run_without_its_reward_servers_waits_and_then_ends_with_one_message(tmp_path):
    (port,) = free_ports(HOST, 1)
    (tmp_path / "secret").write_text("0" * 64)
    process = launch(
        EMBEDDED,
        f"--config.reward.addresses={HOST}:{port}",
        f"--config.reward.secret_path={tmp_path / 'secret'}",
        "--config.launch.wait_secs=5",
        workdir=tmp_path / "run",
    )
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    # The trial of the reward may fail first, or the first completions.
    assert re.match(
        "The run failed: (The reward cannot be used|Completions cannot be judged):"
        " No reward server has",
        failure,
    )
    assert f"{HOST}:{port}" in failure
    assert "Traceback" not in output
