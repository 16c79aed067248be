"""Which ends of children are deaths, and which of several comes first."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from pathlib import Path

import pytest

from rl_sync.isolation import machine_limits
from rl_sync.launcher.processes.supervisor import Death, RoleProcess, Supervisor
from rl_sync.roles.exit_status import ENDED, FAILED, MACHINE_LOST

KILLED = -signal.SIGKILL


@dataclasses.dataclass
class Ended:
    """A child that has ended; None as its status for one that runs."""

    name: str
    status: int | None
    log: Path = Path("log")

    lost = ""

    def poll(self):
        return self.status

    def dump(self):
        pass

    def terminate(self):
        self.status = -signal.SIGTERM

    def kill(self):
        self.status = KILLED


def supervised(**statuses: int | None) -> Supervisor:
    supervisor = Supervisor()
    for name, status in statuses.items():
        supervisor.add(Ended(name, status))
    return supervisor


@pytest.mark.parametrize("server", ["master", "replay"])
def test_a_server_dies_even_if_it_ends_well_and_a_role_only_if_it_does_not(server):
    supervisor = supervised(**{server: 0, "trainer": 0, "explorer1": None, "explorer2": 1})
    assert {death.name for death in supervisor.deaths()} == {server, "explorer2"}
    assert [death.name for death in supervisor.deaths(but_not=[server])] == ["explorer2"]


def test_who_was_killed_comes_before_those_whom_that_let_fail():
    supervisor = supervised(trainer=1, master=0, explorer1=KILLED)
    assert [death.name for death in supervisor.deaths()] == ["explorer1", "trainer", "master"]


def test_a_child_was_killed_unless_it_ended_by_an_error_of_its_own():
    own = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, FAILED, ENDED}
    outside = {KILLED, -signal.SIGTERM, -signal.SIGHUP, MACHINE_LOST}
    killed = {one for one in own | outside if Death("trainer", one, Path("log")).was_killed}
    assert killed == outside


def test_a_child_that_was_ended_on_purpose_is_watched_no_more():
    supervisor = supervised(replay=None, trainer=None)
    supervisor.end(["replay"])
    assert supervisor.deaths() == []
    assert supervisor.living(["replay", "trainer"]) == ["trainer"]


def test_a_death_quotes_the_end_of_the_log(tmp_path):
    command = [sys.executable, "-c", "print(*range(20), sep='\\n'); raise SystemExit(3)"]
    child = RoleProcess.start("trainer", command, tmp_path / "logs" / "trainer.log", {})
    supervisor = Supervisor()
    supervisor.add(child)
    assert supervisor.wait(["trainer"], timeout_secs=30) == []
    (death,) = supervisor.deaths()
    assert str(death) == "trainer ended with exit status 3"
    assert "  | 19\n" in death.report([])
    assert "  | 4\n" not in death.report([]), "the whole log is quoted"


HANGS = """
import faulthandler, signal, threading, time
faulthandler.register(signal.SIGUSR1, all_threads=True)
def stuck_here():
    print("ready", flush=True)
    time.sleep(60)
stuck_here()
"""


def test_a_child_that_hangs_leaves_its_stacks_in_its_log(tmp_path):
    supervisor, log = Supervisor(), tmp_path / "trainer.log"
    supervisor.add(RoleProcess.start("trainer", [sys.executable, "-c", HANGS], log, {}))
    deadline = time.monotonic() + 20
    while "ready" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    death = supervisor.end_hung("trainer", "trainer hangs")
    assert (death.status, str(death)) == (KILLED, "trainer hangs")
    assert "in stuck_here" in log.read_text()


def test_a_role_that_ended_itself_is_told_with_its_reason_alone(tmp_path):
    log = tmp_path / "trainer.log"
    lines = ["2026 INFO begins", "2026 ERROR trainer failed: It is full. Make room.", "And more."]
    log.write_text("\n".join(lines) + "\n")
    assert Death("trainer/1", ENDED, log).report([]) == (
        "trainer/1 ended with exit status 5. It is full. Make room.\nAnd more.\n"
        f"The whole log: {log}"
    )


def test_a_crash_is_told_by_what_was_logged_before_its_stacks(tmp_path):
    log = tmp_path / "trainer.log"
    log.write_text("LLVM ERROR: no memory!\nFatal Python error: Aborted\n\n" + "  a frame\n" * 30)
    said = Death("trainer", -signal.SIGABRT, log).report([])
    assert "  | LLVM ERROR: no memory!\n  | Fatal Python error: Aborted\n" in said
    assert "a frame" not in said


def test_a_limit_of_memory_is_told_of_a_process_that_may_have_met_it(tmp_path, monkeypatch):
    log = tmp_path / "trainer.log"
    log.write_text("RESOURCE_EXHAUSTED\n")
    monkeypatch.setattr(machine_limits.resource, "getrlimit", lambda _: (3 << 30, 3 << 30))
    limited = "is limited to 3,072 MiB here: raise it"
    assert limited in Death("trainer", -signal.SIGABRT, log).report([])
    assert limited not in Death("trainer", -signal.SIGKILL, log).report([])
