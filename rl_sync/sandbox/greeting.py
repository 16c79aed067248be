"""Checks that programs of a language run in a sandbox, before any is judged there."""

from __future__ import annotations

import dataclasses

from rl_sync.sandbox.executable import BuildError, executable
from rl_sync.sandbox.languages import LANGUAGES
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.sandbox import ProgramRun, Sandbox

_LINE = b"hello\n"
_SECS = 12.0  # Seconds for a compiler on a busy machine.
_greeted: set[tuple[str, Sandbox]] = set()


def greet(sandbox: Sandbox, name: str) -> None:
    """Runs a program that says hello, once per process for each language, layer and limits.

    If a language did not run here, its right programs would fail like wrong ones.

    Args:
      sandbox: the sandbox. Its limits apply, except for the time limits.
      name: the language.

    Raises:
      SandboxError: the program does not say hello; the message has the cause.
    """
    if (name, sandbox) in _greeted:
        return
    language = LANGUAGES[name]
    limits = dataclasses.replace(sandbox.limits, wall_secs=_SECS, cpu_secs=2 * _SECS)
    rule = f"{name} does not work in the sandbox {sandbox.layer.name}"
    try:
        with executable(sandbox.within(limits), language, language.hello, _SECS) as made:
            run = made.run(_LINE)
    except BuildError as error:
        raise SandboxError(f"{rule}: {_end(str(error))}") from error
    except SandboxError as error:
        raise SandboxError(f"{rule}: {error}") from error
    if run.stdout.strip() != _LINE.strip() or run.returncode != 0:
        raise SandboxError(f"{rule}: {_cause(sandbox, run)}")
    _greeted.add((name, sandbox))


def _cause(sandbox: Sandbox, run: ProgramRun) -> str:
    """Says why a program that prints its input did not print it."""
    if run.stopped:
        limit = {
            "time": f"{_SECS:g} s",
            "memory": f"{sandbox.limits.memory_bytes >> 20} MiB",
            "processes": f"{sandbox.limits.processes} processes and threads",
        }
        return f"a program that prints a line exceeds the limit of {limit.get(run.stopped, '')}"
    said = run.stderr.decode(errors="replace") or run.stdout.decode(errors="replace")
    return f"exit code {run.returncode}, {_end(said) or 'without a message'}"


def _end(text: str) -> str:
    """Shortens the message of a compiler or interpreter to its first and last lines."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    shown = lines if len(lines) < 3 else [lines[0], "…", lines[-1]]
    return " ".join(shown)[:300]
