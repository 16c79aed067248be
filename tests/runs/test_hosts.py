"""Roles on several machines, for which this one's loopback addresses stand in."""

from __future__ import annotations

import json
import sys

import pytest

from rl_sync.runtime.ledger import read_consumed
from tests.runs.conftest import EMBEDDED, TEAMS, flags, launch

# Takes what ssh takes, notes where it should go, and starts it here.
SHELL = """
import json, os, sys
host, command = sys.argv[2:]
with open(sys.argv[1], "a") as file:
    file.write(json.dumps([host, command]) + "\\n")
os.execv("/bin/sh", ["sh", "-c", command])
"""
HOSTS = {
    "explorer1": "127.0.0.2",
    "explorer1/1": "127.0.0.3",
    "trainer/1": "127.0.0.4",
}


@pytest.fixture
def shell(tmp_path):
    script = tmp_path / "shell.py"
    script.write_text(SHELL)
    return f"{sys.executable} {script} {tmp_path / 'asked'} {{host}}"


@pytest.mark.skipif(sys.platform != "linux", reason="others have one loopback address")
@pytest.mark.parametrize("transfer", ["collective", "server"])
def test_processes_find_each_other_on_the_machines_that_they_were_given(transfer, shell, tmp_path):
    workdir = tmp_path / "runs" / "run"
    process = launch(
        *flags("synchronous", transfer=transfer, steps=3),
        *TEAMS,
        EMBEDDED,
        "--config.launch.host=127.0.0.1",
        f"--config.launch.hosts={','.join(f'{name}={host}' for name, host in HOSTS.items())}",
        f"--config.launch.remote_shell={shell}",
        workdir=workdir,
    )
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert len(read_consumed(workdir)) == 3
    lines = (tmp_path / "asked").read_text().splitlines()
    commands = dict(map(json.loads, lines))
    assert len(lines) == 3
    assert set(commands) == set(HOSTS.values())
    # With collective transfer all are in the trainer's cluster, else a program forms its own.
    forms = {"collective": "127.0.0.1", "server": "127.0.0.2"}[transfer]
    for host in ("127.0.0.2", "127.0.0.3"):
        assert f"--coordinator={forms}:" in commands[host]
        assert "--team=127.0.0.2:" in commands[host]
    assert "--coordinator=127.0.0.1:" in commands["127.0.0.4"]
    assert "--team=127.0.0.1:" in commands["127.0.0.4"]


def test_a_machine_that_cannot_be_reached_is_named(tmp_path):
    process = launch(
        *flags("asynchronous"),
        EMBEDDED,
        "--config.launch.host=127.0.0.1",
        "--config.launch.hosts=explorer1=nowhere",
        "--config.launch.remote_shell=sh -c 'echo no way to {host} >&2; exit 255'",
        workdir=tmp_path / "runs" / "run",
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "explorer1 ended with exit status 255" in output
    assert "no way to nowhere" in output


def test_an_address_of_another_machine_is_not_this_ones(tmp_path):
    process = launch(EMBEDDED, "--config.launch.host=192.0.2.1", workdir=tmp_path / "runs" / "run")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "error: launch.host=192.0.2.1 must be an address of this machine" in output
