"""The launcher's side of machines that join."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time

import pytest

from rl_sync.addons.clusters.hosts import host_desk
from rl_sync.addons.clusters.hosts.host_calls import (
    AskOrders,
    Enlist,
    Enlisted,
    LeaveMachine,
    Order,
    ProcessState,
    Refused,
)
from rl_sync.addons.clusters.hosts.host_desk import HostDesk
from rl_sync.addons.clusters.hosts.host_site import JoinError
from rl_sync.addons.clusters.hosts.joined_host import JoinedHost
from rl_sync.addons.clusters.hosts.release import release, software
from rl_sync.addons.clusters.hosts.remote_process import AwaitedProcess, RemoteProcess
from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
from rl_sync.configs import base
from rl_sync.roles.exit_status import ENDED
from rl_sync.settings.config_reading import read_settings

SECRET = "s" * 64


@pytest.fixture
def made(tmp_path):
    """Makes desks."""
    with contextlib.ExitStack() as stack:

        def make(**fields):
            config = base.get_config()
            config.workdir = str(tmp_path / "run")
            config.launch.host = "127.0.0.1"
            config.launch.hosts = "explorer1=join"
            config.launch.master_lost_secs = 1.0
            config.sync.transfer = "server"
            for name, value in fields.items():
                section, _, field = name.partition("__")
                config[section][field] = value
            desk = HostDesk(read_settings(config.to_dict()), "127.0.0.1", 0, SECRET, tmp_path)
            stack.callback(lambda: desk.end(0))
            return desk

        yield make


class Machine:
    """A machine that does what it is told."""

    def __init__(self, desk, names=("explorer1",), address="10.0.0.7", shares=False, identity="a"):
        self.client = RpcClient(desk.address, "launcher", SECRET)
        self.shares, self.done, self.states = shares, 0, ()
        self.enlist = Enlist(names, address, release(), software(), 0.5, 0.01, "there", identity)

    def join(self):
        self.answer = self.client.call(self.enlist, 10)
        return self.answer

    def orders(self, poll_secs=0.0, ports=()):
        number = self.answer.machine
        call = AskOrders(number, self.done, self.states, tuple(ports), self.shares, poll_secs)
        answer = self.client.call(call, 10)
        if isinstance(answer, list) and answer:
            self.done = answer[-1].number
        return answer


@pytest.mark.gate
def test_a_machine_gets_orders_in_order_and_each_once(made, tmp_path):
    desk = made()
    assert desk.start("explorer1", ["--role=explorer1"], {}) is None, "nobody has joined"
    machine = Machine(desk)
    assert isinstance(machine.join(), Enlisted)
    assert desk.host_of("explorer1") == "10.0.0.7"
    assert desk.start("explorer1", ["--role=explorer1"], {"A": "b"}) == 1
    process = RemoteProcess(desk, "explorer1", 1, tmp_path / "log")
    start = Order(1, "start", "explorer1", 1, ["--role=explorer1"], {"A": "b"})
    assert machine.orders() == [start]
    process.terminate()
    assert [order.kind for order in machine.orders()] == ["terminate"]
    assert machine.orders() == []
    assert process.poll() is None
    machine.states = (ProcessState("explorer1", 1, -15),)
    machine.orders()
    assert process.poll() == -15
    assert desk.start("explorer1", [], {}) == 2
    machine.states = (ProcessState("explorer1", 1, -15),)  # It was sent before the order came.
    machine.orders()
    assert RemoteProcess(desk, "explorer1", 2, tmp_path / "log").poll() is None


@pytest.mark.gate
def test_an_order_whose_answer_was_lost_comes_again(made):
    desk = made()
    machine = Machine(desk)
    machine.join()
    desk.start("explorer1", [], {})
    first = machine.orders()
    machine.done = 0
    assert machine.orders() == first


@pytest.mark.gate
def test_waiting_for_orders_ends_with_one(made):
    desk = made()
    machine = Machine(desk)
    machine.join()
    threading.Timer(0.3, lambda: desk.start("explorer1", [], {})).start()
    since = time.monotonic()
    assert len(machine.orders(poll_secs=10)) == 1
    assert time.monotonic() - since < 5


@pytest.mark.gate
def test_a_silent_machine_is_lost_with_its_processes_and_may_join_again(made, tmp_path):
    desk = made()
    machine = Machine(desk)
    machine.join()
    desk.start("explorer1", [], {})
    process = RemoteProcess(desk, "explorer1", 1, tmp_path / "log")
    time.sleep(1.2)
    desk.look()
    assert process.poll() == -9
    assert "explorer1 is lost: its machine there (10.0.0.7) was not heard for 1 s" in process.lost
    refused = machine.orders()
    assert isinstance(refused, Refused)
    assert not refused.is_final
    assert desk.host_of("explorer1") is None
    machine.join()
    machine.done, machine.states = 0, ()
    assert desk.start("explorer1", [], {}) == 2
    assert machine.orders()[0].attempt == 2
    assert process.poll() == -9


@pytest.mark.gate
def test_a_launcher_that_was_started_again_does_not_take_a_machine_for_another(made):
    """Its machines keep calling with the numbers that the launcher before gave them."""
    earlier, later = made(), made()
    machine = Machine(earlier)
    machine.join()
    other = Machine(later, identity="b")
    other.join()
    later.start("explorer1", [], {})
    machine.client = other.client
    refused = machine.orders()
    assert isinstance(refused, Refused)
    assert not refused.is_final
    assert len(other.orders()) == 1


@pytest.mark.gate
def test_a_name_belongs_to_the_machine_that_is_heard(made, monkeypatch):
    desk = made()
    first, second = Machine(desk), Machine(desk, identity="b")
    first.join()
    refused = second.join()
    assert isinstance(refused, Refused)
    assert not refused.is_final
    assert "there (10.0.0.7) runs explorer1" in refused.why
    assert first.orders() == []
    assert isinstance(first.join(), Enlisted), "it knows itself"
    monkeypatch.setattr(host_desk, "_HEARD_SECS", 0.1)
    time.sleep(0.2)
    assert isinstance(second.join(), Enlisted)


@pytest.mark.gate
def test_a_run_is_known_again_once_it_is_resumed(made):
    first = Machine(made()).join()
    again = Machine(made()).join()
    assert first.run == again.run
    assert first.machine != again.machine


@pytest.mark.gate
def test_a_machine_that_leaves_early_takes_its_processes_with_it(made, tmp_path):
    desk = made()
    machine = Machine(desk)
    number = machine.join().machine
    desk.start("explorer1", [], {})
    process = RemoteProcess(desk, "explorer1", 1, tmp_path / "log")
    machine.client.call(LeaveMachine(number, "it was asked to end (SIGTERM)"), 10)
    assert process.poll() == -15
    assert desk.host_of("explorer1") is None


@pytest.mark.gate
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("release", ("0.0.1", "x"), r"there has rl_sync 0\.0\.1, and this run "),
        ("release", (release()[0], "x"), "with another source"),
        ("names", ("explorer7",), "No machine may join this run as explorer7: launch.hosts has ex"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused(made, field, value, why):
    machine = Machine(made())
    machine.enlist = dataclasses.replace(machine.enlist, **{field: value})
    refused = machine.join()
    assert isinstance(refused, Refused)
    assert refused.is_final
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(refused.why)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("names", "transfer", "why"),
    [
        (("trainer",), "server", "in which the trainer saves snapshots"),
        (("explorer1",), "checkpoint", "in which sync.transfer=checkpoint puts the weights"),
    ],
)
def test_a_machine_that_lacks_a_directory_is_told_which(made, names, transfer, why):
    mode = {"sync__mode": "asynchronous", "sync__transfer": transfer}
    desk = made(launch__hosts="trainer=join,explorer1=join", **mode)
    machine = Machine(desk, names)
    machine.join()
    refused = machine.orders()
    assert isinstance(refused, Refused)
    assert refused.is_final
    assert why in refused.why
    other = Machine(desk, names, shares=True)
    other.join()
    assert other.orders() == []


def test_another_server_is_not_taken_for_the_launcher():
    server = RpcServer(CallHandlers(), 0, secret=SECRET)
    joined = JoinedHost(f"127.0.0.1:{server.port}", SECRET, ["explorer1"], "127.0.0.1", 5)
    with pytest.raises(JoinError, match="is not the address at which machines join"):
        joined.run()
    server.close(0)


@pytest.mark.gate
def test_ports_are_given_out_once(made):
    desk = made()
    machine = Machine(desk)
    machine.join()
    assert desk.take_ports("explorer1", 2) is None
    machine.orders(ports=(1, 2, 3))
    first = desk.take_ports("explorer1", 2)
    machine.orders(ports=(1, 2, 3))  # It does not know yet.
    assert desk.take_ports("explorer1", 2) is None
    machine.orders(ports=(1, 2, 3, 4))
    assert sorted(first + desk.take_ports("explorer1", 2)) == [1, 2, 3, 4]


@pytest.mark.gate
def test_who_joins_is_on_record_with_the_error_of_its_clock(made, tmp_path):
    desk = made()
    machine = Machine(desk)
    others = (("python", "2.7"), ("jax", dict(software())["jax"]))
    machine.enlist = dataclasses.replace(machine.enlist, software=others)
    machine.join()
    (line,) = map(json.loads, (tmp_path / "run" / "hosts.jsonl").read_text().splitlines())
    assert line["processes"] == ["explorer1"]
    assert (line["clock_behind_secs"], line["clock_error_secs"]) == (0.5, 0.01)
    assert line["other_software"] == ["python 2.7"]


@pytest.mark.gate
def test_the_end_of_a_run_waits_until_machines_have_left(made):
    desk = made()
    machine = Machine(desk)
    number = machine.join().machine

    def leave():
        order = machine.orders(poll_secs=10)[-1]
        assert (order.kind, order.status) == ("leave", 3)
        time.sleep(0.3)
        machine.client.call(LeaveMachine(number), 10)

    thread = threading.Thread(target=leave)
    thread.start()
    since = time.monotonic()
    desk.end(3)
    assert 0.3 <= time.monotonic() - since < 10
    thread.join()


def test_a_process_whose_machine_never_joins_ends_with_the_reason(tmp_path):
    process = AwaitedProcess(
        "explorer1", tmp_path / "log", lambda: None, lambda: "no machine has joined", 0.2
    )
    assert process.poll() is None
    assert process.group is None
    time.sleep(0.25)
    assert process.poll() == ENDED
    assert "explorer1 was not started: no machine has joined after 0 s" in process.lost
    assert "launch.start_secs=0.2" in process.lost
