"""A machine that has joined a run: it does what the launcher says until the run ends."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_sync.addons.clusters.hosts.enlisting import Enlisting
from rl_sync.addons.clusters.hosts.host_calls import (
    AskOrders,
    Enlisted,
    LeaveMachine,
    Order,
    ProcessState,
    Refused,
)
from rl_sync.addons.clusters.hosts.host_processes import HostProcesses, ports_in
from rl_sync.addons.clusters.hosts.host_site import HostSite, JoinError, host_site
from rl_sync.addons.clusters.hosts.received_records import places_of
from rl_sync.addons.clusters.hosts.records_sender import RecordsSender
from rl_sync.cluster.ports import HeldPorts
from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.isolation.machine_limits import limit_met

_CALL_SECS = 10.0
_POLL_SECS, _MOST_POLL_SECS, _POLLS_A_SECOND = 0.5, 5.0, 200
_RETRY_SECS = 0.5
_FLUSH_SECS = 5.0
_FINISH_SECS = 25.0
_PORTS = 8
_ENDED = 128 + signal.SIGTERM
_log = logging.getLogger(__name__)


class JoinedHost:
    """Runs processes for a launcher.

    Args:
      run: the launcher's `host:port` for machines.
      secret: secret of the run.
      names: processes that this machine runs.
      address: address of this machine, as others reach it.
      wait_secs: the longest that the launcher cannot be reached, before and during the run.
    """

    def __init__(self, run: str, secret: str, names: Sequence[str], address: str, wait_secs: float):
        self._run, self._secret, self._names = run, secret, tuple(names)
        self._client = RpcClient(run, "launcher", secret)
        self._address = address
        self._asked_to_end = threading.Event()
        self._why_end = ""
        self._enlisting = Enlisting(
            run, self._client, names, address, wait_secs, self._asked_to_end
        )

    def end(self, why: str) -> None:
        """Asks the machine to leave the run; from any thread."""
        self._why_end = why
        self._asked_to_end.set()

    def run(self) -> int:
        """Takes part until the run ends; returns the exit status.

        Raises:
          JoinError: the machine cannot take part, or the launcher cannot be reached.
        """
        while True:
            enlisted = self._enlisting.join()
            if enlisted is None:
                return _ENDED
            try:
                status = self._serve(enlisted)
            except PeerLostError as error:
                print(f"The launcher was lost while its files were fetched: {error}", flush=True)
                continue
            except (RemoteError, OSError) as error:
                why = limit_met(error) or str(error)
                self._tell_leaving(enlisted.machine, why)
                raise JoinError(f"This machine cannot take part: {why}") from error
            except JoinError as error:
                self._tell_leaving(enlisted.machine, str(error))
                raise
            if status is not None:
                return status

    def _serve(self, enlisted: Enlisted) -> int | None:
        """Executes orders until the run ends; returns None if the launcher was lost."""
        config = json.loads(enlisted.config)
        with host_site(enlisted, config, self._names[0], self._secret, self._client) as site:
            sender = None if site.root is None else self._sender(enlisted.machine, config, site)
            ports = HeldPorts(self._address, _ports_of(config))
            processes = HostProcesses(site, self._address, self._enlisting.behind_secs)
            orders = _Orders(self._client, enlisted.machine, config, site, ports)
            try:
                return self._follow(orders, processes, sender, site)
            finally:
                ports.close()
                processes.end_all()
                if sender is not None:
                    sender.close()

    def _follow(
        self,
        orders: _Orders,
        processes: HostProcesses,
        sender: RecordsSender | None,
        site: HostSite,
    ) -> int | None:
        while not self._asked_to_end.is_set():
            states = processes.states()
            if sender is not None and any(state.status for state in states):
                sender.flush(_FLUSH_SECS)  # The launcher shows the log of what has failed.
            try:
                fresh = orders.ask(states)
            except PeerLostError:
                silent = orders.silent_secs
                if silent > orders.most_silent_secs:
                    print(
                        f"The launcher at {self._run} was not heard for {silent:.0f} s: the"
                        " processes here end, and this machine tries to join again."
                    )
                    return None
                time.sleep(_RETRY_SECS)
                continue
            if isinstance(fresh, Refused):
                if fresh.is_final:
                    processes.end_all()  # Before the launcher hears of it.
                    raise JoinError(fresh.why)
                print(fresh.why)
                return None
            for order in fresh:
                if order.kind == "leave":
                    processes.end_all()
                    self._leave(orders.machine, sender, site)
                    return order.status
                processes.execute(order)
        processes.end_all()
        self._leave(orders.machine, sender, site, self._why_end)
        return _ENDED

    def _leave(
        self, machine: int, sender: RecordsSender | None, site: HostSite, why: str = ""
    ) -> None:
        """Sends the last records, and says good-bye; removes the files if all records are sent."""
        is_whole = sender is None or sender.flush(_FINISH_SECS)
        if self._tell_leaving(machine, why) and is_whole:
            site.remove()

    def _tell_leaving(self, machine: int, why: str) -> bool:
        """Says good-bye; returns whether the launcher has heard it."""
        try:
            self._client.call(LeaveMachine(machine, why), _CALL_SECS)
        except (PeerLostError, RemoteError) as error:
            _log.warning("The launcher does not hear that this machine leaves: %s", error)
            return False
        return True

    def _sender(self, machine: int, config: dict[str, Any], site: HostSite) -> RecordsSender:
        assert site.root is not None
        places = [place for name in self._names for place in places_of(site.workdir, name)]
        return RecordsSender(
            RpcClient(self._run, "launcher", self._secret, own_connection=True),
            machine,
            Path(site.workdir),
            places,
            config["launch"]["record_mbit"] * 1e6,
            site.root / "bases.json",
        )


class _Orders:
    """Asks the launcher for orders, and tells it of processes and free ports here.

    Attributes:
      machine: number of this machine.
      most_silent_secs: the longest that the launcher may be silent.
    """

    def __init__(
        self,
        client: RpcClient,
        machine: int,
        config: dict[str, Any],
        site: HostSite,
        ports: HeldPorts,
    ):
        self._client, self._ports = client, ports
        self.machine = machine
        self.most_silent_secs: float = config["launch"]["master_lost_secs"]
        self._reaches = site.root is None
        machines = config["launch"]["hosts"].count("=")
        # So the launcher gets at most some hundreds of calls a second.
        self._poll_secs = min(_MOST_POLL_SECS, max(_POLL_SECS, machines / _POLLS_A_SECOND))
        self._held: list[int] = []
        self._done, self._heard = 0, time.monotonic()

    @property
    def silent_secs(self) -> float:
        """Seconds since the launcher was heard."""
        return time.monotonic() - self._heard

    def ask(self, states: tuple[ProcessState, ...]) -> list[Order] | Refused:
        """Returns the orders that are new.

        Raises:
          PeerLostError: the launcher does not answer.
        """
        self._held += self._ports.take(_PORTS - len(self._held))
        report = AskOrders(
            self.machine, self._done, states, tuple(self._held), self._reaches, self._poll_secs
        )
        answer = self._client.call(report, _CALL_SECS)
        self._heard = time.monotonic()
        if isinstance(answer, Refused):
            return answer
        fresh = [order for order in answer if order.number > self._done]
        for order in fresh:
            self._done = order.number
            used = ports_in(order.arguments)
            self._held = [port for port in self._held if port not in used]
        return fresh


def _ports_of(config: dict[str, Any]) -> range:
    first, _, last = config["launch"]["ports"].partition("-")
    return range(int(first), int(last) + 1)
