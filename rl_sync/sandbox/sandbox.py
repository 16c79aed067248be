"""Sandbox: a layer with limits, which runs programs made of a few files."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rl_sync.sandbox import layer
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.program_process import Confined, await_starts, supervise


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """A finished run of a program.

    Attributes:
      stdout, stderr: its output, cut at the limit.
      returncode: its exit code; negative, or 128 and more, for a signal.
      stopped: the limit at which it was killed, `time`, `memory`, `output` or `processes`, or "".
    """

    stdout: bytes
    stderr: bytes
    returncode: int
    stopped: str


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """Runs programs in a layer within limits.

    Attributes:
      layer: layer that confines programs.
      limits: the limits of each run.
      packages: whether Python programs can import the packages of this environment.
      readable: more files and folders that programs may read.
    """

    layer: layer.SandboxLayer
    limits: ProgramLimits = ProgramLimits()  # noqa: RUF009 (it is frozen)
    packages: bool = False
    readable: tuple[str, ...] = ()

    def run(self, folder: str, task: Sequence[str], stdin: bytes = b"") -> ProgramRun:
        """Runs a task of `inside/launch.py` to its end or to a limit.

        Raises:
          SandboxError: the sandbox does not start.
        """
        process = self.start(folder, task, stdin)
        with contextlib.closing(process):
            await_starts([process])
            deadline = time.monotonic() + self.limits.wall_secs
            if not supervise([process], deadline) and process.returncode is None:
                process.kill("time")
            returncode = process.returncode
        assert returncode is not None, "it was killed or ended"
        stopped = process.stopped
        if not stopped and returncode in (152, -24):  # SIGXCPU.
            stopped = "time"
        return ProgramRun(bytes(process.stdout), bytes(process.stderr), returncode, stopped)

    def start(
        self, folder: str, task: Sequence[str], stdin: bytes | int = b"", stdout: int | None = None
    ) -> Confined:
        """Starts a task; its caller supervises it and closes it.

        Raises:
          SandboxError: the sandbox does not start.
        """
        packages = layer.site_packages() if self.packages else ()
        job = layer.Job(
            folder=Path(folder),
            task=(task[0], *(f"+{path}" for path in packages), *task[1:]),
            limits=self.limits,
            readable=(*packages, *self.readable),
        )
        return Confined(self.layer, job, stdin, stdout)

    @contextlib.contextmanager
    def folder(self, files: Mapping[str, bytes]) -> Iterator[str]:
        """Makes a temporary folder of files, which every user may read and run."""
        with tempfile.TemporaryDirectory(prefix="rl_sync-program-") as name:
            folder = Path(name)
            for file, content in files.items():
                path = folder / file
                path.write_bytes(content)
                path.chmod(0o755)
            folder.chmod(0o755)
            yield name

    def within(self, limits: ProgramLimits) -> Sandbox:
        """Returns this sandbox with other limits."""
        return dataclasses.replace(self, limits=limits)
