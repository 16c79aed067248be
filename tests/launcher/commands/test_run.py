"""The launcher's messages when the end of a run fails."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time

import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
from rl_sync.launcher.commands.run import LocalRun, RunFailedError
from rl_sync.launcher.processes import stopping
from rl_sync.launcher.processes.supervisor import RoleProcess
from rl_sync.messages.master_calls import AskSilences, AskStatus, CloseLedger, Happened
from rl_sync.messages.run_result import Balance, RunResult, Summary
from rl_sync.messages.run_status import RunStatus, Silence
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.runs import tiny

HOST = "127.0.0.1"
SUMMARY = Summary(RunResult(), Balance(0, 0, 0, 0, {}, 0, {}))
FAILED = SUMMARY._replace(result=RunResult(failed="consumed.jsonl cannot be written"))


def ending_with(summary: Summary) -> CallHandlers:
    """A master that is told to stop, and to close."""
    return CallHandlers(
        Happened.answered_by(lambda call: None), CloseLedger.answered_by(lambda call: summary)
    )


@pytest.fixture
def ending(tmp_path):
    """Makes a run whose roles have ended, except the master, which is at a port."""
    settings = read_settings({**tiny.get_config().to_dict(), "workdir": str(tmp_path)})
    run = LocalRun(settings)
    (port,) = free_ports(HOST, 1)
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as run._master:
        yield run, port
    run._supervisor.end_all()


def test_a_master_that_does_not_answer_is_an_error_with_the_reason(ending, tmp_path):
    run, port = ending
    with pytest.raises(RunFailedError) as error:
        run._finish()
    said = str(error.value)
    assert "did not close the run's ledger" in said
    assert f"the master at {HOST}:{port} to CloseLedger" in said
    assert str(Workdir(tmp_path).log("master")) in said


def test_a_master_that_cannot_close_the_ledger_is_an_error_with_the_reason(ending):
    run, port = ending

    def close(call: CloseLedger) -> Summary:
        raise OSError("No space left on device")

    server = RpcServer(CallHandlers(CloseLedger.answered_by(close)), port, HOST)
    with pytest.raises(RunFailedError, match="OSError: No space left on device"):
        run._finish()
    server.close(0.0)


def test_a_master_that_died_last_is_reported_as_dead(ending, tmp_path):
    run, _ = ending
    command = [sys.executable, "-c", "print('out of ideas'); raise SystemExit(3)"]
    master = RoleProcess.start("master", command, tmp_path / "master.log", {})
    run._supervisor.add(master)
    master._popen.wait(30)
    with pytest.raises(RunFailedError) as error:
        run._finish()
    assert "master ended with exit status 3" in str(error.value)
    assert "out of ideas" in str(error.value)


def test_a_role_that_hangs_is_named_and_not_who_waits_for_it(ending, tmp_path):
    run, port = ending
    for name in ("master", "trainer", "explorer1"):
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        run._supervisor.add(RoleProcess.start(name, command, tmp_path / f"{name}.log", {}))
    run._restarts["trainer"] = [time.monotonic()] * run._settings.launch.restarts
    stopped = []

    def stop(call: Happened) -> None:
        stopped.append(call.event.reason)
        run._supervisor.end(["explorer1"])

    status = RunStatus("rl", 3, 12, (), 0, 12, 1.0, "")
    silence = Silence("trainer", 7, 601.0, "at train (step 4)")
    desk = CallHandlers(
        AskSilences.answered_by(lambda call: [silence]),
        AskStatus.answered_by(lambda call: status),
        Happened.answered_by(stop),
        CloseLedger.answered_by(lambda call: SUMMARY),
    )
    server = RpcServer(desk, port, HOST)
    with pytest.raises(RunFailedError) as error:
        run._watch()
    server.close(0.0)
    assert stopped == ["trainer hangs"]
    assert str(error.value).startswith("trainer (process 7) hangs, or was stopped: it has sent no")
    assert "for 601 s" in str(error.value)
    assert "at train (step 4)" in str(error.value)


def test_who_was_killed_is_named_even_if_those_it_brought_down_were_seen_before(ending, tmp_path):
    run, port = ending

    def role(name: str, code: str) -> RoleProcess:
        command = [sys.executable, "-c", code]
        process = RoleProcess.start(name, command, tmp_path / f"{name}.log", {})
        run._supervisor.add(process)
        return process

    role("explorer1", "import os; os.abort()")._popen.wait(30)
    (seen,) = run._supervisor.deaths()
    role("trainer", "import os, time; time.sleep(1); os.kill(os.getpid(), 9)")
    server = RpcServer(ending_with(SUMMARY), port, HOST)
    with pytest.raises(RunFailedError) as error:
        run._fail([seen])
    server.close(0.0)
    assert str(error.value).startswith("trainer was killed by SIGKILL; after it explorer1 was")


def test_the_way_to_go_on_can_be_pasted_whatever_the_directory_is_called(tmp_path):
    odd = str(tmp_path / "it's a place")
    settings = read_settings({**tiny.get_config().to_dict(), "workdir": odd})
    told = stopping.how_to_go_on(settings).partition("the same command with ")[2]
    assert shlex.split(told)[0] == f"--config.workdir={odd}"


def test_a_run_that_a_role_has_stopped_has_failed_and_says_why(ending):
    run, port = ending
    server = RpcServer(ending_with(FAILED), port, HOST)
    with pytest.raises(RunFailedError) as error:
        run._finish()
    server.close(0.0)
    reason, way = str(error.value).splitlines()
    assert reason == "consumed.jsonl cannot be written"
    assert way.startswith("Nothing was trained yet")


def test_the_reason_to_stop_comes_before_who_died_of_it(ending, tmp_path):
    run, port = ending
    command = [sys.executable, "-c", "raise SystemExit(1)"]
    trainer = RoleProcess.start("trainer", command, tmp_path / "trainer.log", {})
    run._supervisor.add(trainer)
    trainer._popen.wait(30)
    server = RpcServer(ending_with(FAILED), port, HOST)
    with pytest.raises(RunFailedError) as error:
        run._fail(run._supervisor.deaths())
    server.close(0.0)
    said = str(error.value).splitlines()
    assert said[0] == "consumed.jsonl cannot be written"
    assert said[1].startswith("Then trainer ended with exit status 1.")
