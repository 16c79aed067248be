"""Confined processes with pipes, and their supervision: input, output, time, memory and number."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO

from rl_sync.isolation import process_limits
from rl_sync.sandbox.inside.launch import STARTED
from rl_sync.sandbox.layer import Job, SandboxError, SandboxLayer
from rl_sync.sandbox.program_limits import ProgramLimits

_TICK_SECS = 0.05
_DRAIN_SECS = 0.5
START_SECS = 10.0
"""Maximum seconds to start a sandbox."""
# Number of processes and threads that a layer itself may have.
_OWN_THREADS = 12
_CHUNK_BYTES = 1 << 16


class Confined:
    """A confined process.

    Args:
      layer: the sandbox.
      job: the program.
      stdin: bytes to send, or a pipe's descriptor to read from.
      stdout: a pipe's descriptor to write to; None to collect the output.

    Attributes:
      stdout, stderr: the output so far.
      stopped: the limit at which the process was killed: `time`, `memory`, `output` or `processes`;
        empty if it was not.
      started: whether the sandbox handed over to the program.
      returncode: the exit code once it ended; negative for a signal.
    """

    def __init__(
        self, layer: SandboxLayer, job: Job, stdin: bytes | int = b"", stdout: int | None = None
    ):
        command = layer.command(job)
        self.limits: ProgramLimits = job.limits
        self.stdout, self.stderr, self.stopped = bytearray(), bytearray(), ""
        self.returncode: int | None = None
        self.started, self._layer, self._scratch = False, layer, command.scratch
        self._input = memoryview(stdin) if isinstance(stdin, bytes) else memoryview(b"")
        try:
            self._process = subprocess.Popen(
                command.argv,
                stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin,
                stdout=subprocess.PIPE if stdout is None else stdout,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(command.environment),
                pass_fds=command.descriptors,
                start_new_session=True,
                user=command.user,
                group=command.user,
                extra_groups=None if command.user is None else [],
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"The sandbox {layer.name} did not start: {error}") from error
        finally:
            for descriptor in command.descriptors:
                os.close(descriptor)
        self._open: dict[IO[bytes], bytearray] = {}
        if command.user is not None:
            given = (end for end in (stdin, stdout) if isinstance(end, int))
            made = (self._process.stdin, self._process.stdout, self._process.stderr)
            for end in (*given, *(pipe.fileno() for pipe in made if pipe is not None)):
                os.fchmod(end, 0o666)  # So that the other user can open /dev/stdin.
        for pipe, collected in (
            (self._process.stdout, self.stdout),
            (self._process.stderr, self.stderr),
        ):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._open[pipe] = collected
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def ended(self) -> bool:
        """Says whether the process has ended and all its output was read."""
        return self.returncode is not None and not self._open

    def register(self, selector: selectors.BaseSelector) -> None:
        """Adds this process's pipes to a selector, with functions to call once they are ready."""
        for pipe in self._open:
            selector.register(pipe, selectors.EVENT_READ, lambda p=pipe: self._read(p, selector))
        if (pipe_in := self._process.stdin) is not None and not pipe_in.closed:
            selector.register(pipe_in, selectors.EVENT_WRITE, lambda: self._write(selector))

    def poll(self) -> None:
        """Notices the end of the process."""
        if self.returncode is None and (code := self._process.poll()) is not None:
            self.returncode = code

    def check(self) -> None:
        """Kills the process if it has too many descendants, or they use too much memory."""
        tree = process_limits.process_tree(self._process.pid)
        if tree.threads > self.limits.processes + _OWN_THREADS:
            self.kill("processes")
        elif tree.memory_bytes() > self.limits.memory_bytes * 1.25:
            self.kill("memory")

    def kill(self, why: str = "") -> None:
        """Kills the process and all that it started."""
        self.stopped = self.stopped or why
        if self.returncode is None:
            process_limits.kill_tree(self._process.pid)
            self.returncode = self._process.wait()

    def require_start(self) -> None:
        """Raises unless the program itself was started.

        Raises:
          SandboxError: the sandbox failed before the program started.
        """
        if not self.started:
            reason = self.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise SandboxError(f"{self._layer.name} does not start programs: {reason[-1][:300]}")

    def close(self) -> None:
        """Kills the process if it still runs, and closes its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._open.clear()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _read(self, pipe: IO[bytes], selector: selectors.BaseSelector) -> None:
        try:
            chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if pipe is self._process.stderr and not self.started and chunk:
            self.started, chunk = chunk.startswith(STARTED), chunk.removeprefix(STARTED)
            if not chunk:
                return
        collected = self._open[pipe]
        room = self.limits.output_bytes - len(collected)
        collected += chunk[:room]
        if len(chunk) > room:
            self.kill("output")
            chunk = b""
        if not chunk:
            selector.unregister(pipe)
            del self._open[pipe]
            pipe.close()

    def _write(self, selector: selectors.BaseSelector) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BlockingIOError):
            try:
                self._input = self._input[os.write(pipe.fileno(), self._input[:_CHUNK_BYTES]) :]
            except BrokenPipeError:
                self._input = memoryview(b"")
        if not self._input:
            selector.unregister(pipe)
            pipe.close()


def await_starts(processes: Sequence[Confined], deadline: float = math.inf) -> None:
    """Waits until sandboxes hand over to their programs; the programs' time limits start then.

    Raises:
      SandboxError: a sandbox failed, or was not ready in time.
    """
    deadline = min(deadline, time.monotonic() + START_SECS)
    supervise(processes, deadline, lambda: all(p.started or p.ended for p in processes))
    for process in processes:
        process.require_start()


def supervise(
    processes: Sequence[Confined], deadline: float, done: Callable[[], bool] | None = None
) -> bool:
    """Moves input and output until a condition holds, within the limits of the processes.

    Args:
      processes: the processes to supervise.
      deadline: the time, by `time.monotonic`, at which to give up.
      done: the condition; by default that all processes ended.

    Returns:
      Whether the condition held. If not, the deadline passed; the processes are as they were.
    """
    done = done or (lambda: all(process.ended for process in processes))
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for process in processes:
            process.register(selector)
            if process.returncode is None and hasattr(os, "pidfd_open"):
                ending = os.pidfd_open(process._process.pid)
                stack.callback(os.close, ending)
                selector.register(ending, selectors.EVENT_READ, _unregister(selector, ending))
        next_check = time.monotonic() + _TICK_SECS
        drained_at = None
        while True:
            for process in processes:
                process.poll()
            if done():
                return True
            now = time.monotonic()
            if all(process.returncode is not None for process in processes):
                # If the layer allows it, a process that outlived its parent may hold the pipe.
                drained_at = drained_at or now + _DRAIN_SECS
            if now >= min(deadline, drained_at or deadline):
                return False
            if now >= next_check:
                next_check = now + _TICK_SECS
                for process in processes:
                    process.check()
            for key, _ in selector.select(min(deadline, next_check) - now):
                key.data()


def _unregister(selector: selectors.BaseSelector, descriptor: int) -> Callable[[], object]:
    return lambda: selector.unregister(descriptor)
