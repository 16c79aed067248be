"""The sandbox layer of Landlock, with the package sandlock, for containers without namespaces.

The kernel (6.12 or newer) restricts files, network, signals and sockets of a program, and sandlock
watches some of its system calls. Processes and memory are limited, and what a program writes goes
to a copy with a limited size. The program still sees that other processes exist.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_sync.sandbox import layer, seccomp

_HOST = layer.INSIDE.parent / "landlock_host.py"


@dataclasses.dataclass(frozen=True)
class Landlock:
    """Runs programs by a process of ours, which hosts sandlock's supervisor."""

    @property
    def name(self) -> str:
        """The layer."""
        return "landlock (sandlock)"

    @property
    def languages(self) -> frozenset[str] | None:
        """None, since the layer runs any command."""
        return None

    def prepare(self) -> None:
        """Makes the filter of system calls.

        Raises:
          SandboxError: it cannot be made.
        """
        seccomp.program(shared=True)

    def command(self, job: layer.Job) -> layer.SandboxCommand:
        """Makes the command that runs a job under Landlock."""
        readable = [
            *layer.readable_folders(),
            *(path for path in ("/bin", "/lib", "/lib64", "/dev/urandom")),
            str(layer.INSIDE),
            str(job.folder),
            *job.readable,
        ]
        scratch = tempfile.mkdtemp(prefix="rl_sync-scratch-")
        filter_file = os.path.join(scratch, "filter")
        Path(filter_file).write_bytes(seccomp.program(shared=True))
        python = layer.launch_arguments(job, folder=job.folder, code=filter_file)
        order = {
            "scratch": scratch,
            "readable": readable,
            "memory": job.limits.memory_bytes,
            "processes": job.limits.processes,
            "disk": job.limits.file_bytes,
            "environment": dict(layer.ENVIRONMENT),
            "command": [layer.interpreter(), *python],
        }
        return layer.SandboxCommand(
            [sys.executable, "-I", str(_HOST), json.dumps(order)], scratch=scratch
        )


def variants() -> Iterator[Landlock]:
    """Yields the layer if sandlock is installed."""
    if sys.platform == "linux" and importlib.util.find_spec("sandlock") is not None:
        yield Landlock()
