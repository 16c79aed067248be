"""Runs whose roles have several processes, of several devices each, on one machine or several.

Loopback addresses of this machine stand for other machines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.records.spans import sync_kind
from tests.runs.conftest import EMBEDDED, MESHES, TEAMS, RunRecord, Runs, assert_same_bits

SHORT = (EMBEDDED, "--config.trainer.steps=4")
MODES = {
    "synchronous": ("--config.sync.mode=synchronous",),
    "one step off-policy": ("--config.sync.mode=one_step_off_policy",),
    "custom (2, 1)": (
        "--config.sync.mode=custom",
        "--config.sync.interval=2",
        "--config.sync.offset=1",
    ),
}
HERE = [("one step off-policy", "collective"), ("custom (2, 1)", "checkpoint")]
ELSEWHERE = [("synchronous", "collective"), ("one step off-policy", "server")]

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


class Machines(NamedTuple):
    """Several machines: their settings, and the commands that they got."""

    flags: tuple[str, ...]
    asked: Path

    def commands(self) -> list[list[str]]:
        """Returns each host and the command by which it joins a run."""
        return [*map(json.loads, self.asked.read_text().splitlines())]


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Machines:
    directory = tmp_path_factory.mktemp("machines")
    script, asked = directory / "shell.py", directory / "asked"
    script.write_text(SHELL)
    flags = (
        "--config.launch.host=127.0.0.1",
        f"--config.launch.hosts={','.join(f'{name}={host}' for name, host in HOSTS.items())}",
        f"--config.launch.remote_shell={sys.executable} {script} {asked} {{host}}",
    )
    return Machines(flags if sys.platform == "linux" else (), asked)


def in_teams(runs: Runs, machines: Machines, mode: str, transfer: str) -> RunRecord:
    """Makes a run of programs of several processes each."""
    elsewhere = machines.flags if (mode, transfer) in ELSEWHERE else ()
    return runs.get(*MODES[mode], f"--config.sync.transfer={transfer}", *SHORT, *TEAMS, *elsewhere)


@pytest.mark.parametrize(
    ("mode", "transfer"),
    [
        pytest.param(*HERE[0], marks=pytest.mark.nightly),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in [*HERE[1:], *ELSEWHERE]),
    ],
)
def test_programs_of_several_processes_give_the_bits_of_single_ones(runs, machines, mode, transfer):
    """Parameters are sharded over the processes of the trainer and, otherwise, of the explorer.

    The single processes are in a cluster too: outside a cluster XLA adds up over a process's
    devices in another order.
    """
    teams = in_teams(runs, machines, mode, transfer)
    collective = (*MODES[mode], "--config.sync.transfer=collective")
    alone = runs.get(*collective, *SHORT, *MESHES, apart=True)
    logs = {path.name for path in teams.workdir.logs.iterdir()}
    assert {"trainer.log", "trainer.1.log", "explorer1.log", "explorer1.1.log"} <= logs
    assert_same_bits(teams, alone)
    steps = [step["step"] for step in teams.consumed]
    assert steps == [1, 2, 3, 4], "a step is recorded once, by the first process"
    assert {span.role for span in teams.spans()} == {span.role for span in alone.spans()}
    assert teams.spans(sync_kind(transfer), role="explorer1")
    _assert_same_figures(teams, alone)


def _assert_same_figures(teams: RunRecord, alone: RunRecord) -> None:
    """Checks that the trainer's first process knows the figures of its own rows' tokens."""
    pairs = zip(read_rollouts(teams.workdir), read_rollouts(alone.workdir), strict=True)
    known = []
    for one, whole in pairs:
        assert len(whole.ratios) == len(whole.ids)
        assert one.ratios in ([], whole.ratios)
        known.append(bool(one.ratios))
    assert 0.25 < sum(known) / len(known) < 0.75


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="others have one loopback address")
@pytest.mark.parametrize(("mode", "transfer"), ELSEWHERE)
def test_processes_find_each_other_on_the_machines_that_they_were_given(
    runs, machines, mode, transfer
):
    run = in_teams(runs, machines, mode, transfer)
    joined = read_json_lines(run.workdir.hosts)
    assert {line["processes"][0]: line["address"] for line in joined} == HOSTS
    for host, command in machines.commands():
        assert f"--host={host}" in command.split()
