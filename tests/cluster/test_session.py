"""A role's session in the run: its heartbeats, its status, and its end by a stop."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from rl_sync.cluster.heartbeats import SILENT_SECS
from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, PeerGoneError, RpcClient, RpcServer
from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.session import RunStoppedError, Session, heartbeat_secs
from rl_sync.cluster.team import Team
from rl_sync.messages.master_calls import AskSilences, Heartbeat, Leave
from rl_sync.messages.run_status import Silence
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.cluster.memory_session import MemorySession
from tests.settings.changed import settings_with

HOST = "127.0.0.1"


def client(address: str, workdir: Path) -> RpcClient:
    """Makes a client of the master of the run in a directory."""
    return RpcClient(address, "master", secret_of(workdir))


class Second(Team):
    """The second process of a program."""

    leads, process = False, 1


class Master(NamedTuple):
    """A master, and what it hears."""

    address: str
    heard: dict
    left: list


@pytest.fixture
def master(tmp_path):
    """Records heartbeats, and reports the trainer as silent."""
    (port,) = free_ports(HOST, 1)
    heard, left, silent = {}, [], [Silence("trainer", 8, 25.0, "at train (step 2)")]

    def heartbeat(call):
        heard[call.name] = call.status.role, call.process, call.doing

    desk = CallHandlers(
        Heartbeat.answered_by(heartbeat),
        Leave.answered_by(lambda call: left.append(call.name)),
        AskSilences.answered_by(lambda call: silent if call.at_least_secs <= 25.0 else []),
    )
    server = RpcServer(desk, port, HOST, secret=secret_of(tmp_path))
    yield Master(f"{HOST}:{port}", heard, left)
    server.close(0.0)


@pytest.fixture
def session(tmp_path, master):
    """Makes the sessions of a run's processes."""
    limits = {"call_secs": 5.0, "wait_secs": 0.1, "master_lost_secs": 60.0}
    settings = settings_with(**{f"launch__{name}": secs for name, secs in limits.items()})
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    with contextlib.ExitStack() as closing:

        def start(role: str, team: Team | None = None) -> Session:
            called = client(master.address, tmp_path)
            return closing.enter_context(Session(settings, role, called, team or Team()))

        yield start


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_process_of_a_program_gives_signs_of_life_until_it_leaves(session, master, tmp_path):
    first, second = session("explorer1"), session("explorer1", Second())
    with first.spans.span(SpanKind.ROLLOUT, step=3):
        wait_until(lambda: "(step 3)" in master.heard.get("explorer1", ("", 0, ""))[2])
    wait_until(lambda: "explorer1/1" in master.heard)
    assert master.heard["explorer1"] == ("explorer1", os.getpid(), "at rollout (step 3)")
    assert master.heard["explorer1/1"][0] == "explorer1"
    first.close()
    second.close()
    assert master.left == ["explorer1", "explorer1/1"]
    told = read_json_lines(Workdir(tmp_path).usage / "explorer1.jsonl")[0]["doing"]
    assert (told["kind"], told["says"], told["attributes"]["step"]) == ("rollout", "rollout e3", 3)


def test_the_master_gets_no_more_heartbeats_a_second_from_many_explorers():
    assert [heartbeat_secs(count) for count in (0, 1, 250)] == [0.5, 0.5, 0.5]
    assert [count / heartbeat_secs(count) for count in (250, 600, 1000)] == [500, 500, 500]
    assert heartbeat_secs(10_000) == 2.0 < SILENT_SECS


def test_a_wait_that_is_too_long_names_who_gives_no_sign_of_life(session):
    deadline = session("explorer1").deadline("prompts", "the master")
    time.sleep(0.2)
    with pytest.raises(TimeoutError) as error:
        deadline()
    assert "explorer1 has waited for prompts from the master for 0 s" in str(error.value)
    assert "trainer (process 8) hangs, or was stopped" in str(error.value)
    assert "when it was at train (step 2)" in str(error.value)


def test_a_wait_that_is_renewed_begins_anew(session):
    deadline = session("explorer1").deadline("prompts", "the master")
    time.sleep(0.2)
    deadline.renew()
    deadline()
    time.sleep(0.2)
    with pytest.raises(TimeoutError):
        deadline()


def test_who_waits_does_not_name_itself(session):
    deadline = session("trainer").deadline("groups", "the explorers")
    time.sleep(0.2)
    with pytest.raises(TimeoutError) as error:
        deadline()
    assert "hangs" not in str(error.value)


def test_a_role_is_shown_with_the_step_of_what_it_does():
    """It is not shown with its last finished step, which may even be of another phase."""
    session = MemorySession()
    session.facts |= {"step": 60, "loss": 0.3}
    with session.spans.span(SpanKind.SFT, step=51):
        assert session.status().step == 60
    with session.spans.span(SpanKind.TRAIN, step=1):
        assert (session.status().activity, session.status().step) == ("train", 1)
    with session.spans.span(SpanKind.EVALUATION):
        assert session.status().step == 60
    assert session.status().loss == 0.3


def test_the_progress_of_an_activity_is_shown_while_it_lasts_and_not_while_it_waits():
    session, done = MemorySession(), iter([0, 3])
    with (
        session.spans.span(SpanKind.EVALUATION),
        session.showing(lambda: (next(done), 8)),
    ):
        assert (session.status().done, session.status().of) == (0, 8)
        with session.spans.span(SpanKind.WAIT, reason="judgements"):
            assert session.status().done is None
    assert session.status().done is None


def test_a_stop_that_comes_before_a_role_has_begun_is_no_failure():
    session, closed = MemorySession(), []
    session.close = lambda: closed.append(True)
    for error in (RunStoppedError, TimeoutError):
        stopped = error is RunStoppedError
        with contextlib.nullcontext() if stopped else pytest.raises(error), session:
            raise error
    with session:
        pass
    assert len(closed) == 3


def test_calls_wait_for_a_master_that_is_started_again(tmp_path):
    (port,) = free_ports(HOST, 1)
    settings = settings_with(launch__call_secs=5.0, launch__master_lost_secs=20.0)
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    desk = CallHandlers(AskSilences.answered_by(lambda call: []), Heartbeat.answered_by(str))
    secret = secret_of(tmp_path)
    first = RpcServer(desk, port, HOST, secret=secret)
    with Session(settings, "trainer", client(f"{HOST}:{port}", tmp_path), Team()) as session:
        assert session.call(AskSilences(5.0)) == []
        first.close(0.0)
        servers = []

        def start_again():
            time.sleep(1.0)
            servers.append(RpcServer(desk, port, HOST, secret=secret))

        starter = threading.Thread(target=start_again)
        starter.start()
        assert session.call(AskSilences(5.0)) == []
        assert servers, "the call has not waited"
        starter.join()
        servers[0].close(0.0)


def test_a_call_gives_up_a_master_that_does_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda status: None)
    (port,) = free_ports(HOST, 1)
    settings = settings_with(launch__call_secs=5.0, launch__master_lost_secs=0.5)
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    with Session(settings, "trainer", client(f"{HOST}:{port}", tmp_path), Team()) as session:
        started = time.monotonic()
        with pytest.raises(PeerGoneError, match=r"the master at .* to AskSilences"):
            session.call(AskSilences(5.0))
        assert 0.5 <= time.monotonic() - started < 10
