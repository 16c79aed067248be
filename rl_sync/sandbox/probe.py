"""Probe of a sandbox layer with a hostile program."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_sync.sandbox.layer import SandboxError, SandboxLayer
from rl_sync.sandbox.program_limits import MIB, ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox

CANARY = Path(__file__).with_name("canary.py")
"""The file of the hostile program."""
_PLACE = "ast.literal_eval(sys.argv[1])"
_LIMITS = ProgramLimits(wall_secs=10.0, memory_bytes=512 * MIB, processes=8)
_VARIABLE = "RL_SYNC_CANARY"


def fault(layer: SandboxLayer) -> str | None:
    """Returns the reason not to trust a layer on this machine; None if it withstood all attacks."""
    try:
        layer.prepare()
    except SandboxError as error:
        return str(error)
    with _targets() as targets, _variable(), _victim() as victim:
        values = (*targets, os.getpid(), victim.pid, _LIMITS.processes)
        source = CANARY.read_text()
        assert _PLACE in source, "the canary has a place for its targets"
        program = source.replace(_PLACE, repr(values))
        sandbox = Sandbox(layer, _LIMITS)
        try:
            with sandbox.folder({"main.py": program.encode()}) as folder:
                run = sandbox.run(folder, ("script", "main.py"))
        except SandboxError as error:
            return str(error)
        secret, outside = Path(targets[0]), Path(targets[1])
        if not secret.exists() or len(list(outside.iterdir())) > 2 or outside.stat().st_mode & 0o77:
            return "a program could change files outside"
        if victim.poll() is not None:
            return "a program could kill a process outside"
    *escapes, last = run.stdout.decode(errors="replace").split() or [""]
    if escapes:
        return f"a program could {', '.join(escapes).replace('_', ' ')}"
    if last != "alive" and run.stopped != "processes":
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {run.returncode} {run.stopped}"
        return f"programs do not run: {reason[:300]}"
    return None


@contextlib.contextmanager
def _targets() -> Iterator[tuple[str, str, int, str]]:
    """Makes a secret file, its folder, a port and a Unix socket."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rl_sync-canary-"))
        secret, path = os.path.join(folder, "secret"), os.path.join(folder, "socket")
        Path(secret).write_text("secret")
        port = 0
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_UNIX, path),
            (socket.AF_UNIX, "\0" + path),
        ):
            # Some systems have no sockets without a file.
            with contextlib.suppress(OSError):
                listener = stack.enter_context(socket.socket(family))
                listener.bind(address)
                listener.listen()
                port = port or listener.getsockname()[1]
        yield secret, folder, port, path


@contextlib.contextmanager
def _victim() -> Iterator[subprocess.Popen]:
    """Starts a process that a program may try to kill."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=-1) as victim:
        try:
            yield victim
        finally:
            victim.kill()


@contextlib.contextmanager
def _variable() -> Iterator[None]:
    os.environ[_VARIABLE] = "secret"
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
