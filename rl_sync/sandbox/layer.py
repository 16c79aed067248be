"""Interface of sandbox layers: each makes commands that run programs confined."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_sync.sandbox.program_limits import ProgramLimits

INSIDE = Path(__file__).parent / "inside"
"""The folder of the modules that run inside a sandbox, beside the judged program."""
PYTHON_FLAGS = ("-I", "-S", "-B", "-X", "utf8", "-X", "int_max_str_digits=0")
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

# Files that programs in /usr need, often by links: of the linker, Java and OpenSSL (Node.js).
_PARTS_OF_ETC = (
    "ld.so.cache",
    "alternatives",
    "java",
    "java-*",
    "crypto-policies",
    "ssl/openssl.cnf",
    "pki/tls/openssl.cnf",
)


class SandboxError(RuntimeError):
    """Raised when the sandbox itself failed, so that nothing is known about the program."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A program to confine.

    Attributes:
      folder: the folder of the program's files on this machine. The program only reads it.
      task: the arguments of `inside/launch.py` after its limits: a task and its operands.
      limits: the limits of the run.
      readable: more files and folders that the program may read.
    """

    folder: Path
    task: Sequence[str]
    limits: ProgramLimits
    readable: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SandboxCommand:
    """A command to start.

    Attributes:
      argv: the command.
      descriptors: file descriptors that the command inherits, and that its starter closes.
      environment: its environment variables.
      scratch: a temporary folder that the command uses, and its starter removes; "" for none.
      user: the user, and group, to start it as; None for ours.
    """

    argv: Sequence[str]
    descriptors: tuple[int, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: ENVIRONMENT)
    scratch: str = ""
    user: int | None = None


class SandboxLayer(Protocol):
    """A way to confine programs. Its name gives the layer and its variant."""

    @property
    def name(self) -> str:
        """The name in messages, in the cache of the choice, and in `--layer`."""
        ...

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages that the layer can run; None if it runs any command."""
        ...

    def prepare(self) -> None:
        """Prepares the layer, once on a machine before the first command.

        Raises:
          SandboxError: the layer cannot be trusted or prepared here.
        """
        ...

    def command(self, job: Job) -> SandboxCommand:
        """Makes the command that runs a job confined."""
        ...


@functools.cache
def interpreter() -> str:
    """Returns the path of the Python interpreter outside any virtual environment."""
    path = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    return str(path if path.exists() else Path(sys.executable).resolve())


@functools.cache
def readable_folders() -> tuple[str, ...]:
    """Returns the folders of the system and of the interpreter that every program may read."""
    prefix = Path(sys.base_prefix)
    folders = [Path("/usr"), *(prefix / part for part in ("bin", "lib", "lib64"))]
    files = [found for pattern in _PARTS_OF_ETC for found in sorted(Path("/etc").glob(pattern))]
    inside_usr = [f for f in folders[1:] if f.is_relative_to("/usr")]
    return tuple(
        str(path) for path in [*folders, *files] if path not in inside_usr and path.exists()
    )


@functools.cache
def site_packages() -> tuple[str, ...]:
    """Returns the folders of this environment's packages."""
    return tuple(path for path in sys.path if path.endswith("-packages") and os.path.isdir(path))


def launch_arguments(
    job: Job,
    *,
    folder: str | os.PathLike[str],
    inside: str | os.PathLike[str] = INSIDE,
    uid: int = -1,
    code: str = "",
) -> list[str]:
    """Returns the arguments of Python that start `inside/launch.py` for a job.

    Args:
      job: the program.
      folder: the path of its files inside the sandbox.
      inside: the path of the folder `inside` inside the sandbox.
      uid: the user to become; negative for none.
      code: the file of a filter of system calls to install; "" for none.
    """
    limits = job.limits
    numbers = [
        uid,
        limits.memory_bytes if limits.counts_reserved else -limits.memory_bytes,
        -int(-limits.cpu_secs // 1),
        limits.file_bytes,
        limits.processes,
        code,
    ]
    script = os.path.join(inside, "launch.py")
    return [*PYTHON_FLAGS, script, ",".join(map(str, numbers)), str(folder), *job.task]
