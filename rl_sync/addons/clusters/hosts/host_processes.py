"""The processes of a run on a machine that has joined it, as the launcher orders them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import rl_sync
from rl_sync.addons.clusters.hosts.host_calls import Order, ProcessState
from rl_sync.addons.clusters.hosts.host_site import HostSite
from rl_sync.clock import BEHIND
from rl_sync.cluster.host_names import OWN_ADDRESS
from rl_sync.launcher.processes.stack_dump import dump_stacks
from rl_sync.launcher.processes.supervisor import RoleProcess

_GRACE_SECS = 3.0


class HostProcesses:
    """Starts, watches and ends processes.

    Args:
      site: the run's directories here.
      address: address of this machine, as others reach it.
      behind_secs: how much this clock is behind the launcher's.
    """

    def __init__(self, site: HostSite, address: str, behind_secs: float):
        self._site, self._address, self._behind_secs = site, address, behind_secs
        self._processes: dict[str, tuple[int, RoleProcess]] = {}

    def execute(self, order: Order) -> None:
        """Starts, ends or asks a process; an order for an earlier attempt changes nothing."""
        attempt, process = self._processes.get(order.name, (0, None))
        if order.kind == "start":
            if process is not None:
                process.kill()
            self._processes[order.name] = (order.attempt, self._started(order))
        elif process is None or attempt != order.attempt or process.poll() is not None:
            return
        elif order.kind == "dump":
            dump_stacks(process.group, process.log)
        elif order.kind == "terminate":
            process.terminate()
        else:
            process.kill()

    def states(self) -> tuple[ProcessState, ...]:
        """Returns the states of the processes."""
        return tuple(
            ProcessState(name, attempt, process.poll())
            for name, (attempt, process) in self._processes.items()
        )

    def end_all(self) -> None:
        """Ends all processes, by force after a moment."""
        processes = [process for _, process in self._processes.values()]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE_SECS
        while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in processes:
            process.kill()
        self._processes.clear()

    def _started(self, order: Order) -> RoleProcess:
        site = self._site
        command = [sys.executable, "-m", "rl_sync.roles.process", *order.arguments]
        command += [f"--workdir={site.workdir}", "--lifeline"]
        package = str(Path(rl_sync.__file__).resolve().parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **order.environment,
            BEHIND: f"{self._behind_secs:.6f}",
            OWN_ADDRESS: self._address,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        log = site.workdir.log(order.name)
        return RoleProcess.start(order.name, command, log, environment, site.directory)


def ports_in(arguments: Sequence[str]) -> set[int]:
    """Returns the ports in the addresses of a process, which are given out by then."""
    ends = [one.rpartition(":")[2] for one in arguments if "=" in one]
    return {int(end) for end in ends if end.isdecimal()}
