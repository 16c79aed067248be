"""A Python interpreter in a sandbox; each run and each call gets a new process."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_sync.sandbox.inside import plain
from rl_sync.sandbox.program_limits import MIB, ProgramLimits
from rl_sync.sandbox.sandbox import ProgramRun, Sandbox
from rl_sync.sandbox.sandbox_choice import LAYERS, choose
from rl_sync.spelling import require_one_of

_OUTPUT_BYTES = MIB
_FILE = "code.py"


class Returned(NamedTuple):
    """The outcome of a call.

    Attributes:
      value: the result, if there is no fault.
      fault: an exception, a limit, or another reason why there is no result; empty if there is one.
    """

    value: Any
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """Runs Python code in a sandbox. Nothing is kept from one run to the next.

    Attributes:
      seconds: the time limit of a run; starting the sandbox does not count.
      memory_mib: the memory limit, in MiB.
      processes: the limit of processes and threads.
      packages: whether code can import the packages of this environment, such as NumPy.
      layer: the sandbox: `auto`, or a name of `rl_sync.sandbox.sandbox_choice.LAYERS`.
      unsandboxed: whether to run code without a sandbox if none works. Dangerous.

    Raises:
      ValueError: a limit is not positive, or there is no such layer.
    """

    seconds: float = 5.0
    memory_mib: int = 512
    processes: int = 32
    packages: bool = False
    layer: str = "auto"
    unsandboxed: bool = False

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mib", "processes"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} of an interpreter must be positive, not {getattr(self, name)!r}."
                )
        require_one_of("sandbox layer", self.layer, ["auto", *LAYERS])

    def prepare(self) -> None:
        """Chooses the sandbox ahead of use, so that processes forked from this one already have it.

        Raises:
          SandboxError: none works here; the message says what to install.
        """
        choose(self.layer, self.unsandboxed)

    def run(self, code: str) -> ProgramRun:
        """Runs code as a cell of a notebook, which shows the value of its last expression.

        Raises:
          SandboxError: no sandbox works, or it does not start.
        """
        return self._run("cell", code)

    def call(self, source: str, name: str, arguments: Mapping[str, Any]) -> Returned:
        """Calls a function with arguments by name; they and the result are plain values.

        Args:
          source: the text of its module.
          name: the function's name.
          arguments: its arguments; `rl_sync.sandbox.inside.plain` says what can be sent.

        Raises:
          SandboxError: no sandbox works, or it does not start.
        """
        encoded = {key: plain.encode(value) for key, value in arguments.items()}
        request = io.BytesIO()
        plain.write_message(request, ["call", name, [], encoded])
        run = self._run("program", source, request.getvalue())
        try:
            return _returned(run.stdout) or Returned(None, self.fault(run) or "no result")
        except (plain.MessageError, ValueError, TypeError, LookupError) as error:
            return Returned(None, f"the result cannot be read: {error}")

    def fault(self, run: ProgramRun) -> str:
        """Describes the limit, signal or exit code that ended a run; empty if it succeeded."""
        limits = {
            "time": f"it took longer than {self.seconds:g} s",
            "memory": f"it took more than {self.memory_mib} MiB of memory",
            "output": f"it wrote more than {_OUTPUT_BYTES // MIB} MiB",
            "processes": f"it started more than {self.processes} processes and threads",
        }
        if run.stopped:
            return limits[run.stopped]
        number = -run.returncode if run.returncode < 0 else run.returncode - 128
        if number > 0:
            return f"signal {number} ended it"
        return f"exit code {run.returncode}" if run.returncode else ""

    def _run(self, task: str, text: str, stdin: bytes = b"") -> ProgramRun:
        limits = ProgramLimits(
            wall_secs=self.seconds,
            cpu_secs=2 * self.seconds,  # CPU seconds of all threads of a process.
            memory_bytes=self.memory_mib * MIB,
            output_bytes=_OUTPUT_BYTES,
            processes=self.processes,
        )
        layer = choose(self.layer, self.unsandboxed)
        sandbox = Sandbox(layer, limits, packages=self.packages)
        with sandbox.folder({_FILE: text.encode("utf-8", "replace")}) as folder:
            return sandbox.run(folder, (task, _FILE), stdin)


def _returned(output: bytes) -> Returned | None:
    """Reads the answers to the start and to the call; None if one is missing.

    Raises:
      MessageError, ValueError, TypeError, LookupError: an answer is malformed.
    """
    stream = io.BytesIO(output)
    for _ in range(2):
        answer = plain.read_message(stream, most_bytes=_OUTPUT_BYTES)
        if answer is None:
            return None
        kind, *rest = answer
        if kind == "raised":
            name, text = rest
            return Returned(None, f"{name}: {text}" if text else str(name))
        if kind == "refused":
            return Returned(None, f"its result is {rest[0]}, which is no plain value")
    return Returned(plain.decode(rest[0]))
