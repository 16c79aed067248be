"""The config's sections `launch` and `master`: how processes start, wait for each other and end."""

from __future__ import annotations

import dataclasses
from typing import Any

from rl_sync.setting import check, setting

JOIN = "join"
"""Address in `hosts` of machines that join by themselves."""

PORT: dict[str, Any] = {"least": 0, "greatest": 65_535}
"""Bounds of a server's port."""

WAIT_SECS: dict[str, Any] = {"unit": "seconds", "above": 0, "greatest": 1e8}
"""Unit and bounds of a time limit; the maximum is far below the limit of timers."""


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """`config.launch`."""

    colocate: bool | None = setting(
        None,
        "Runs trainer and explorers as threads of one process, each with devices of its own if"
        " there are enough; weights that would go by collective transfer are handed over.",
        implied="true for a run that this machine computes on its only GPU, else false",
    )
    share_devices: bool = setting(
        False, "With `colocate`, lets them take turns on the same devices in any case."
    )
    restarts: int = setting(
        3,
        "Times in an hour that each role that died is started again; 0 for never. With collective"
        " transfer, and in one process, trainer and explorers are started again together.",
        least=0,
    )
    start_secs: float = setting(
        300.0, "The longest that a role or a server takes until it is up.", **WAIT_SECS
    )
    wait_secs: float = setting(
        600.0,
        "The longest that a role waits for another, and the longest that one gives no sign of"
        " life.",
        **WAIT_SECS,
    )
    call_secs: float = setting(60.0, "The longest that the master takes to answer.", **WAIT_SECS)
    master_lost_secs: float = setting(
        60.0,
        "Silence of the master after which a role ends itself. A master that died is started again"
        " meanwhile.",
        **WAIT_SECS,
    )
    stop_secs: float = setting(
        60.0,
        "Time without computing or saving after which a role that was asked to stop is killed.",
        **WAIT_SECS,
    )
    resume_changed: bool = setting(
        False,
        "Lets a run go on although settings have changed that say what it learns, and from what."
        " Without it only those may change that say where, how fast and how long.",
    )
    host: str | None = setting(
        None,
        "Address of this machine, as the machines of `hosts` reach it, or the name of a network"
        " interface. With `auto` it is the address towards them.",
        implied="no other machine takes part",
    )
    hosts: str = setting(
        "",
        "Machines of processes that run elsewhere, as `NAME=ADDRESS,…` with names such as"
        " `explorer2`, or `trainer/1` for the trainer's second process. With `NAME=join` the"
        " launcher waits for a machine that joins by itself to run it.",
    )
    port: int = setting(
        0, "Port of this machine at which the others join the run; 0 for any free one.", **PORT
    )
    ports: str = setting(
        "20000-29999", "Ports of the run's servers on each machine, as `FIRST-LAST`."
    )
    remote_shell: str = setting(
        "ssh -T -o BatchMode=yes {host}",
        "Command that starts another on the machine `{host}`, and keeps its standard input open.",
    )
    remote_python: str | None = setting(
        None,
        "Python on the machines of `hosts`, in whose environment rl_sync is installed.",
        implied="the path of the launcher's Python",
    )
    files: str = setting(
        "",
        "More files and folders in the current directory that machines without it get, separated"
        " by commas: those that rewards and environments read. They get the code and the data that"
        " the config names in any case.",
    )
    file_mib: int = setting(
        64,
        "The largest file that a machine gets from the launcher; larger ones must be there.",
        unit="MiB",
        least=1,
    )
    record_mbit: int = setting(
        200,
        "Bandwidth that a machine takes at most to send its logs and records to the launcher.",
        unit="Mbit/s",
        least=1,
    )
    scratch: str | None = setting(
        None,
        "Directory of the machines that do not reach the work directory, for the run's files.",
        implied="a directory in the machine's directory for temporary files",
    )
    compilation_cache: str | None = setting(
        None,
        "Local directory of compiled programs; empty for none. JAX_COMPILATION_CACHE_DIR goes"
        " before it.",
        implied="a directory in the user's cache",
        is_path=True,
    )

    compile_ahead: int | None = setting(
        None,
        "Threads in which each role compiles its programs before it needs them; 0 for none, so that"
        " each is compiled when it is first called.",
        unit="threads",
        least=0,
        implied="half of the machine's cores on accelerators, but at most 8; 0 on CPUs",
    )

    page: bool = setting(
        False,
        "Serves a page on the run while it goes on, at an address that is printed;"
        " `rl-sync page` serves it at any time.",
    )
    page_port: int = setting(0, "Port of that page on this machine; 0 for any free one.", **PORT)

    @property
    def elsewhere(self) -> dict[str, str]:
        """Returns the machines of processes that do not run on this machine, by process name."""
        pairs = (pair.partition("=") for pair in self.hosts.split(",") if pair.strip())
        return {name.strip(): address.strip() for name, _, address in pairs}

    @property
    def sent(self) -> list[str]:
        """Returns the paths in `files`."""
        return [path.strip() for path in self.files.split(",") if path.strip()]

    @property
    def servers(self) -> range:
        """Returns the ports that `ports` allows.

        Raises:
          ValueError: they are not written as two ports.
        """
        first, _, last = self.ports.partition("-")
        return range(int(first), int(last) + 1)

    def __post_init__(self) -> None:
        check(self, "launch")


@dataclasses.dataclass(frozen=True)
class MasterProcessSettings:
    """`config.master`."""

    port: int = setting(0, "Port of the master; 0 for any free one.", **PORT)
    lease_secs: float = setting(
        60.0,
        "Time without a sign of life from an explorer after which its leases expire, and others"
        " get its prompts.",
        **WAIT_SECS,
    )

    def __post_init__(self) -> None:
        check(self, "master")
