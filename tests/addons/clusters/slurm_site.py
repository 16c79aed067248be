"""A real Slurm on this machine: a controller, and nodes with names, addresses and processes.

All is in private namespaces below one directory, and ends with the context. A node is a process
namespace with a slurmd, so a node can be lost with everything that runs on it. Debian's packages
are enough: `apt-get install slurmctld slurmd slurm-client munge`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "unshare", "nsenter")
_READY_SECS = 30.0
_CONF = """
ClusterName=trial
SlurmctldHost={controller}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobRequeue=1
SlurmdTimeout=10
KillWait=30
MinJobAge=3000
SchedulerParameters=bf_interval=1,sched_interval=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=first Nodes={first} MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=others Nodes={others} MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_not() -> str:
    """Returns why Slurm cannot run here; empty if it can."""
    if lacking := [one for one in _PROGRAMS if shutil.which(one) is None]:
        return f"Slurm's programs {', '.join(lacking)} are not installed"
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--fork", "true"], check=False, capture_output=True
    )
    return "" if tried.returncode == 0 else "private namespaces need root"


class SlurmSite:
    """A cluster of nodes `n1`, `n2`, …, each with an address and cores of its own.

    Args:
      folder: directory for all files.
      nodes: number of nodes.
      cores: cores that each node says it has.
    """

    def __init__(self, folder: Path, nodes: int = 4, cores: int = 4):
        self._folder, self._cores = folder, cores
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._base = 21_000 + os.getpid() % 5_000

    @contextlib.contextmanager
    def running(self) -> Iterator[SlurmSite]:
        """Starts the cluster, and ends it with everything that runs on it."""
        try:
            self._start()
            yield self
        finally:
            for daemon in self._daemons.values():
                daemon.send_signal(signal.SIGKILL)
            for daemon in self._daemons.values():
                daemon.wait()

    def run(
        self, *command: str, variables: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        """Runs a command of a user on the controller's machine; returns its output.

        Raises:
          AssertionError: it failed.
        """
        done = subprocess.run(
            [*self._inside, f"--wd={cwd or self._folder}", *command],
            env={**self._environment, **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(self, job: str) -> str:
        """Returns the state of a job, such as PENDING, RUNNING or COMPLETED."""
        told = self.run("scontrol", "show", "job", job)
        return told.partition("JobState=")[2].split()[0]

    def wait(self, job: str, *states: str, timeout_secs: float = 300.0) -> str:
        """Waits until a job has one of several states; returns it."""
        deadline = time.monotonic() + timeout_secs
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}, not {states}"
            time.sleep(0.5)
        return state

    def lose(self, node: str) -> None:
        """Kills a node with everything that runs on it."""
        daemon = self._daemons.pop(node)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()

    def start_node(self, node: str) -> None:
        """Starts a node."""
        # The node's first process ends with this one, and its processes end with it.
        alone = ["unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        slurmd = f"hostname {node}; slurmd -D -N {node} -f {self._conf} & wait"
        self._daemons[node] = self._daemon([*self._inside, *alone, "sh", "-c", slurmd])

    def wait_idle(self, count: int) -> None:
        """Waits until nodes are ready."""
        deadline = time.monotonic() + _READY_SECS
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                found = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
                if len([line for line in found.splitlines() if line.endswith(" idle")]) >= count:
                    return
            time.sleep(0.3)
        raise AssertionError(f"{count} nodes are not ready: {found}; see {self._folder}/*.log")

    @property
    def _conf(self) -> Path:
        return self._folder / "slurm.conf"

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._conf)}

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._site.pid}", "--mount", "--uts"]

    def _daemon(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def _start(self) -> None:
        folder = self._folder
        for name in ("state", "munge"):
            (folder / name).mkdir(parents=True, mode=0o700)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        addresses = {node: f"127.0.1.{number}" for number, node in enumerate(self.nodes, 1)}
        hosts = [f"{address} {node}\n" for node, address in addresses.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost control\n" + "".join(hosts))
        lines = [
            f"NodeName={node} NodeAddr={address} Port={self._base + number} CPUs={self._cores}"
            " RealMemory=8000 State=UNKNOWN"
            for number, (node, address) in enumerate(addresses.items(), 1)
        ]
        self._conf.write_text(
            _CONF.format(
                folder=folder,
                port=self._base,
                controller="control",
                nodes="\n".join(lines),
                first=self.nodes[0],
                others=",".join(self.nodes[1:]),
            )
        )
        mounted = f"hostname control; mount --bind {folder}/hosts /etc/hosts && exec sleep infinity"
        self._site = self._daemon(["unshare", "--mount", "--uts", "sh", "-c", mounted])
        self._daemons["site"] = self._site
        deadline = time.monotonic() + _READY_SECS
        while "control" not in self.run("hostname"):
            assert time.monotonic() < deadline, "the namespaces are not made"
            time.sleep(0.05)
        time.sleep(0.2)
        munge = folder / "munge"
        self._daemons["munge"] = self._daemon(
            [
                *self._inside,
                "munged",
                "--force",
                "--foreground",
                f"--socket={munge}/socket",
                f"--key-file={key}",
                f"--log-file={munge}/log",
                f"--pid-file={munge}/pid",
                f"--seed-file={munge}/seed",
            ]
        )
        self._daemons["controller"] = self._daemon(
            [*self._inside, "slurmctld", "-D", "-f", str(self._conf)]
        )
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle(len(self.nodes))
