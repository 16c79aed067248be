"""The launcher's side of machines that join a run: their orders and files, and their records.

A machine that is not heard for `launch.master_lost_secs` counts as lost, and so do its processes.
It ends them, as it does not hear from the launcher either, and may join again.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import secrets
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_sync.addons.clusters.hosts.host_calls import (
    AskOrders,
    AskPart,
    AskTime,
    BeginRecords,
    Enlist,
    Enlisted,
    LeaveMachine,
    Order,
    ProcessState,
    Refused,
    SendRecords,
)
from rl_sync.addons.clusters.hosts.received_records import ReceivedRecords
from rl_sync.addons.clusters.hosts.release import release, software
from rl_sync.addons.clusters.hosts.run_files import RunFiles
from rl_sync.addresses import address_of
from rl_sync.clock import now_secs
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.role_names import TRAINER, role_of
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

_POLL_SECS = 20.0
_THREADS_EACH = 3
_FEWEST_THREADS = 8
_LEAVE_SECS = 30.0
_HEARD_SECS = 8.0
"""Time since a sign of life after which another machine may take the place of one."""
_NUMBER_BITS = 62


@dataclasses.dataclass
class _Machine:
    """A machine that has joined.

    Attributes:
      names: processes that it runs.
      address, host: see `Enlist`.
      identity: see `Enlist`.
      heard_secs: when it was last heard, by the monotonic clock.
      orders: orders that it has not executed.
      states: its processes, by name.
      ports: ports that are held there and were not given out.
      given: ports that were given out.
      lost: why its processes cannot be reached any more; empty while they can.
    """

    names: tuple[str, ...]
    address: str
    host: str
    identity: str
    heard_secs: float
    orders: collections.deque[Order] = dataclasses.field(default_factory=collections.deque)
    states: dict[str, ProcessState] = dataclasses.field(default_factory=dict)
    ports: list[int] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)
    last_order: int = 0
    lost: str = ""
    has_left: bool = False


class HostDesk:
    """Serves the machines of a run.

    Args:
      settings: the run's settings.
      host, port: address to listen on.
      secret: secret of the run.
      directory: the launcher's current directory.

    Raises:
      ValueError: the port is taken.
      ConfigError: see `RunFiles`.
    """

    def __init__(
        self, settings: RunSettings, host: str, port: int, secret: str, directory: Path
    ) -> None:
        self._settings, self._directory = settings, directory
        self._workdir = Workdir(settings.workdir)
        self._files = RunFiles(settings, directory)
        self._config = json.dumps(settings.resolved())
        self._records = ReceivedRecords(self._workdir)
        self._changed = threading.Condition()
        self._machines: dict[int, _Machine] = {}
        self._attempts = collections.Counter[str]()
        self._joins = JsonLinesWriter(self._workdir.hosts, vital=False)
        lines = read_json_lines(self._workdir.hosts, strict=False)
        known = [str(line["run"]) for line in lines if "run" in line]
        self._run = known[0] if known else secrets.token_hex(8)
        names = settings.launch.elsewhere
        handlers = CallHandlers(
            AskTime.answered_by(lambda _: now_secs()),
            Enlist.answered_by(self._enlist),
            AskPart.answered_by(self._part),
            AskOrders.answered_by(self._orders),
            BeginRecords.answered_by(self._begin_records),
            SendRecords.answered_by(self._write),
            LeaveMachine.answered_by(self._leave),
        )
        threads = _FEWEST_THREADS + _THREADS_EACH * len(names)
        self._server = RpcServer(handlers, port, host, threads, secret)
        self.address = address_of(host, self._server.port)

    def host_of(self, name: str) -> str | None:
        """Returns the address of the machine that runs a process; None if none has joined."""
        with self._changed:
            machine = self._machine_of(name)
            return None if machine is None else machine.address

    def had(self, name: str) -> bool:
        """Says whether a machine that runs a process has ever joined."""
        with self._changed:
            return self._machine_of(name, also_lost=True) is not None

    def take_ports(self, name: str, count: int) -> list[int] | None:
        """Returns ports on the machine of a process; None if it has not told enough yet."""
        with self._changed:
            machine = self._machine_of(name)
            if machine is None or len(machine.ports) < count:
                return None
            taken = [machine.ports.pop() for _ in range(count)]
            machine.given.update(taken)
            return taken

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> int | None:
        """Starts a process on its machine; returns the attempt, or None if none has joined.

        Args:
          arguments: arguments of `rl_sync.roles.process` without `--workdir`.
        """
        with self._changed:
            machine = self._machine_of(name)
            if machine is None:
                return None
            self._attempts[name] += 1
            attempt = self._attempts[name]
            machine.states[name] = ProcessState(name, attempt, None)
            number = machine.last_order + 1
            start = Order(number, "start", name, attempt, list(arguments), dict(environment))
            self._send(machine, start)
            return attempt

    def signal(self, name: str, attempt: int, kind: str) -> None:
        """Sends a process's machine an order to dump, terminate or kill it."""
        with self._changed:
            machine = self._machine_of(name)
            if machine is not None and machine.states.get(name, _NONE).attempt == attempt:
                self._send(machine, Order(machine.last_order + 1, kind, name, attempt))

    def state(self, name: str, attempt: int) -> int | str | None:
        """Returns the exit status of a process, None while it runs, or why it was lost."""
        with self._changed:
            machine = self._machine_of(name, also_lost=True)
            state = None if machine is None else machine.states.get(name)
            if machine is None or state is None or state.attempt != attempt:
                return f"the machine that ran {name} has joined again without it"
            if state.status is not None:
                return state.status
            return machine.lost or None

    def look(self) -> None:
        """Finds machines that were not heard for too long."""
        limit = self._settings.launch.master_lost_secs
        with self._changed:
            for machine in self._machines.values():
                silent = time.monotonic() - machine.heard_secs
                if not machine.lost and not machine.has_left and silent > limit:
                    machine.lost = (
                        f"its machine {machine.host} ({machine.address}) was not heard for"
                        f" {silent:.0f} s (launch.master_lost_secs={limit:g})"
                    )
                    self._changed.notify_all()

    def lose(self, names: Sequence[str], why: str) -> None:
        """Gives up the machine of some processes.

        Args:
          why: reason, which follows the name of a process.
        """
        with self._changed:
            for machine in self._machines.values():
                if not (machine.lost or machine.has_left) and {*machine.names} & {*names}:
                    machine.lost = why
            self._changed.notify_all()

    def end(self, status: int) -> None:
        """Lets the machines leave once their records are sent, for a limited time."""
        with self._changed:
            machines = [one for one in self._machines.values() if not one.lost]
            for machine in machines:
                self._send(machine, Order(machine.last_order + 1, "leave", status=status))
            deadline = time.monotonic() + _LEAVE_SECS
            limit = self._settings.launch.master_lost_secs

            def stays(machine: _Machine) -> bool:
                is_silent = time.monotonic() - machine.heard_secs > limit
                return not (machine.has_left or machine.lost or is_silent)

            while any(map(stays, machines)) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(1.0, left))
            if missing := [one.host for one in machines if not (one.has_left or one.lost)]:
                told = ", ".join(missing)
                print(f"Some records of {told} may be missing: they are kept there.")
        self._server.close()
        self._joins.close()

    def _machine_of(self, name: str, also_lost: bool = False) -> _Machine | None:
        """Returns the newest machine that runs a process."""
        for machine in reversed(self._machines.values()):
            if name in machine.names:
                return machine if also_lost or not (machine.lost or machine.has_left) else None
        return None

    def _send(self, machine: _Machine, order: Order) -> None:
        machine.last_order = order.number
        machine.orders.append(order)
        self._changed.notify_all()

    def _enlist(self, call: Enlist) -> Enlisted | Refused:
        if why := self._why_not(call):
            print(f"\n{call.host} ({call.address}) may not join: {why}", flush=True)
            return Refused(why, is_final=True)
        now = time.monotonic()
        with self._changed:
            others = [one for name in call.names if (one := self._machine_of(name)) is not None]
            for other in others:
                if other.identity != call.identity and now - other.heard_secs < _HEARD_SECS:
                    names = ", ".join(other.names)
                    return Refused(
                        f"{other.host} ({other.address}) runs {names}: end it there, or join"
                        " under another name",
                        is_final=False,
                    )
            for other in others:  # It was lost, which may not have been noticed yet.
                other.lost = f"another machine, {call.host}, has joined in its place"
            number = secrets.randbits(_NUMBER_BITS)
            machine = _Machine(call.names, call.address, call.host, call.identity, now)
            self._machines[number] = machine
            self._changed.notify_all()
        self._note(call)
        return Enlisted(
            number,
            self._run,
            str(self._workdir),
            str(self._directory),
            self._config,
            self._files.files,
            self._files.rewritten,
        )

    def _note(self, call: Enlist) -> None:
        """Records and prints that a machine has joined."""
        here = dict(software())
        differing = [f"{a} {b}" for a, b in call.software if here.get(a) != b]
        self._joins.write(
            {
                "time": now_secs(),
                "run": self._run,
                "host": call.host,
                "address": call.address,
                "processes": call.names,
                "clock_behind_secs": round(call.behind_secs, 4),
                "clock_error_secs": round(call.error_secs, 4),
                "other_software": differing,
            }
        )
        note = f" It has other software: {', '.join(differing)}." if differing else ""
        print(f"\n{call.host} ({call.address}) joins as {', '.join(call.names)}.{note}", flush=True)

    def _why_not(self, call: Enlist) -> str:
        """Returns why a machine may not join; empty if it may."""
        if call.release != release():
            (here, source), (there, other) = release(), call.release
            what = (
                f"{there}, and this run {here}"
                if here != there
                else (f"{there} with another source ({other}, and this run {source})")
            )
            return f"{call.host} has rl_sync {what}: install the same on all machines of a run."
        wanted = self._settings.launch.elsewhere
        for name in call.names:
            if name not in wanted:
                others = ", ".join(wanted) or "none"
                return f"No machine may join this run as {name}: launch.hosts has {others}."
        return ""

    def _orders(self, call: AskOrders) -> list[Order] | Refused:
        with self._changed:
            machine = self._machines.get(call.machine)
            if machine is None:
                return Refused("The launcher was started again, and does not know it.", False)
            if machine.lost:
                return Refused(f"The launcher has given up this machine: {machine.lost}.", False)
            machine.heard_secs = time.monotonic()
            while machine.orders and machine.orders[0].number <= call.done:
                machine.orders.popleft()
            for state in call.states:
                known = machine.states.get(state.name)
                if known is None or known.attempt == state.attempt:
                    machine.states[state.name] = state
            machine.ports = [port for port in call.ports if port not in machine.given]
            if why := self._lacking_disk(machine, call.shares):
                machine.lost = why
                self._changed.notify_all()
                return Refused(f"{why}.", is_final=True)
            self._changed.notify_all()
            self._changed.wait_for(lambda: machine.orders, min(call.poll_secs, _POLL_SECS))
            machine.heard_secs = time.monotonic()
            return list(machine.orders)

    def _part(self, call: AskPart) -> bytes:
        with self._changed:
            if (machine := self._machines.get(call.machine)) is not None:
                machine.heard_secs = time.monotonic()
        return self._files.read(call.place, call.offset, call.count)

    def _lacking_disk(self, machine: _Machine, shares: bool) -> str:
        """Returns why a machine's processes need a directory that it does not reach; else empty."""
        if shares:
            return ""
        settings = self._settings
        if any(role_of(name) == TRAINER for name in machine.names):
            return (
                f"{machine.host} does not reach {self._workdir}, in which the trainer saves"
                " snapshots: start the launcher on the trainer's machine, or give a"
                " --config.workdir that both reach"
            )
        if settings.transfer == "checkpoint" and settings.sync.directory is None:
            return (
                f"{machine.host} does not reach {self._workdir}, in which sync.transfer=checkpoint"
                " puts the weights: use sync.transfer=server, or give a sync.directory that all"
                " machines reach, or a bucket"
            )
        return ""

    def _begin_records(self, call: BeginRecords) -> int:
        return self._records.begin(self._names_of(call.machine), call.place)

    def _write(self, call: SendRecords) -> int:
        names = self._names_of(call.machine)
        return self._records.write(names, call.place, call.offset, call.content, call.is_cut)

    def _names_of(self, number: int) -> tuple[str, ...]:
        """Returns the processes of a machine, which may still send records if it was given up."""
        with self._changed:
            return self._machines[number].names

    def _leave(self, call: LeaveMachine) -> None:
        with self._changed:
            machine = self._machines.get(call.machine)
            if machine is not None and not machine.lost:
                machine.has_left = True
                for name, state in machine.states.items():
                    if state.status is None:
                        machine.states[name] = state._replace(status=-signal.SIGTERM)
                if call.why:
                    machine.lost = f"its machine {machine.host} has left: {call.why}"
            self._changed.notify_all()


_NONE = ProcessState("", 0, None)
