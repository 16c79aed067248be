"""Preparation of programs in any language, which then run on standard input."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from rl_sync.sandbox.languages import ProgramLanguage
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import ProgramRun, Sandbox


class BuildError(Exception):
    """Raised for a program that does not compile; the program is at fault."""


@dataclasses.dataclass(frozen=True)
class Executable:
    """A program whose files are in place.

    Attributes:
      sandbox: the sandbox to run it in.
      folder: the folder of its files.
      task: the task of `inside/launch.py` that runs it.
    """

    sandbox: Sandbox
    folder: str
    task: tuple[str, ...]

    def run(self, stdin: bytes) -> ProgramRun:
        """Runs the program once.

        Raises:
          SandboxError: the sandbox does not start.
        """
        return self.sandbox.run(self.folder, self.task, stdin)


@contextlib.contextmanager
def executable(
    sandbox: Sandbox, language: ProgramLanguage, program: str, build_secs: float
) -> Iterator[Executable]:
    """Puts a program's files in place, and builds it if its language has a compiler.

    The compiler runs in the sandbox too, since its input is the program. The built file leaves the
    sandbox as the compiler's output, so nothing outside is ever open for writing.

    Args:
      sandbox: the sandbox.
      language: the language of the program.
      program: the program's text.
      build_secs: the time limit of the compiler.

    Raises:
      BuildError: the program does not compile.
      SandboxError: the sandbox does not start.
    """
    limits = dataclasses.replace(sandbox.limits, counts_reserved=language.counts_reserved)
    sandbox = sandbox.within(limits)
    files = {language.file: program.encode("utf-8", "replace")}
    if language.build:
        with sandbox.folder(files) as folder:
            files = {
                "program": _build(
                    sandbox.within(_for_compiler(sandbox.limits, build_secs)), language, folder
                )
            }
    with sandbox.folder(files) as folder:
        task = ("script", language.file) if language.run is None else ("command", *language.run)
        yield Executable(sandbox, folder, task)


def _for_compiler(limits: ProgramLimits, secs: float) -> ProgramLimits:
    """Returns the limits of a compiler: it prints the file that it built."""
    return dataclasses.replace(limits, wall_secs=secs, output_bytes=limits.file_bytes)


def _build(sandbox: Sandbox, language: ProgramLanguage, folder: str) -> bytes:
    script = '"$@" >&2 && cat program'
    run = sandbox.run(folder, ("command", "sh", "-c", script, "build", *language.build))
    if run.returncode == 127:  # The shell found no such command.
        raise SandboxError(f"there is no compiler {language.build[0]}")
    if run.stopped:
        raise BuildError(f"the compiler exceeded the limit of {run.stopped}")
    if run.returncode != 0:
        raise BuildError(run.stderr.decode(errors="replace").strip() or "the compiler failed")
    return run.stdout
