"""Fork server: a process that has prepared a program, and forks workers from itself.

The server answers no requests and runs no threads. It reaps its workers, reports how they ended,
and kills them when the host asks for it or has ended.

Each worker has a channel to the host, and the server has a lifeline beside it: the server writes to
the lifeline how the worker ended, and kills the worker once the host closes it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import wait

from rl_sync.isolation import process_limits
from rl_sync.isolation.worker_program import WorkerProgram, serve

FORK = b"f"
"""A host's command. With it the host sends the worker's end of a channel and the server's end of a
lifeline."""
END = struct.Struct("<ci")
"""The end of a worker: its kind, and the exit code (negative for a signal) or the `errno`."""
ENDED, NOT_FORKED = b"e", b"n"
STARTED = struct.Struct("<I")
"""Length of the text that explains why the server cannot serve; 0 if it can."""

_FAULT_BYTES = 1 << 16
_PARENT_CHECK_SECS = 0.5
_END_SECS = 3.0


def main(descriptor: int, reference: str, arguments: str) -> None:
    """Serves a host until the host ends.

    Args:
      descriptor: the socket to the host.
      reference: the program's class, as `module:Class`.
      arguments: the arguments of the class, as JSON.
    """
    control = socket.socket(fileno=descriptor)
    parent = os.getppid()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with _ended_with(parent, control):
        program, fault = _prepared(reference, arguments)
    text = fault.encode(errors="backslashreplace")[:_FAULT_BYTES]
    control.sendall(STARTED.pack(len(text)) + text)
    if program is not None:
        _ForkServer(control, parent, program).run()


def _prepared(reference: str, arguments: str) -> tuple[WorkerProgram | None, str]:
    """Makes and prepares a program; returns it, or why it cannot be served."""
    try:
        module, _, name = reference.partition(":")
        program = getattr(importlib.import_module(module), name)(*json.loads(arguments))
        program.prepare()
    except ValueError as error:
        return None, str(error)
    except BaseException as error:
        traceback.print_exc()
        return None, f"{arguments} cannot be prepared: {type(error).__name__}: {error}"
    return program, ""


@contextlib.contextmanager
def _ended_with(parent: int, control: socket.socket) -> Iterator[None]:
    """Ends the process if the host ends during a long import."""
    done, ours = socket.socketpair()

    def follow() -> None:
        while os.getppid() == parent:
            ready = wait([control, done], _PARENT_CHECK_SECS)
            if done in ready:
                return
            if control in ready:  # A host sends nothing before the server has started.
                break
        os._exit(1)

    thread = threading.Thread(target=follow, name="lifeline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ours.close()
        thread.join()
        done.close()


class _ForkServer:
    """Forks, kills and reaps workers."""

    def __init__(self, control: socket.socket, parent: int, program: WorkerProgram) -> None:
        self._control, self._parent, self._program = control, parent, program
        self._pid = os.getpid()
        self._lifelines: dict[int, socket.socket] = {}  # The workers' lifelines, by process.
        self._wake, self._waker = socket.socketpair()
        for one in (self._wake, self._waker):
            one.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for one in (self._control, self._wake):
            self._selector.register(one, selectors.EVENT_READ)

    def run(self) -> None:
        """Serves until the host ends, then ends all workers."""
        process_limits.adopt_orphans()
        # Imported objects never become garbage; collection would copy their pages in workers.
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            while self._serve_once():
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # The host has ended.
        finally:
            self._end_all()

    def _serve_once(self) -> bool:
        ready = [key for key, _ in self._selector.select(_PARENT_CHECK_SECS)]
        for key in ready:
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(1 << 10)
            elif key.fileobj is not self._control:  # The host has closed the lifeline.
                self._selector.unregister(key.fileobj)
                process_limits.kill_tree(key.data)
        self._reap()
        if any(key.fileobj is self._control for key in ready):
            command, descriptors, _, _ = socket.recv_fds(self._control, len(FORK), 2)
            if not command:
                return False
            channel, lifeline = (socket.socket(fileno=one) for one in descriptors)
            self._fork(channel, lifeline)
        return os.getppid() == self._parent

    def _fork(self, channel: socket.socket, lifeline: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._report(lifeline, NOT_FORKED, error.errno or 0)
            channel.close()
            return
        if pid == 0:
            status = 1
            try:
                self._become_worker(channel, lifeline)
                serve(channel, self._program)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        with contextlib.suppress(OSError):  # Both processes do this: either may be first.
            os.setpgid(pid, pid)
        channel.close()
        self._lifelines[pid] = lifeline
        self._selector.register(lifeline, selectors.EVENT_READ, pid)

    def _become_worker(self, channel: socket.socket, lifeline: socket.socket) -> None:
        os.setpgid(0, 0)
        process_limits.end_with_parent()
        if os.getppid() != self._pid:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self._control, self._wake, self._waker, lifeline, *self._lifelines.values()):
            one.close()
        self._lifelines = {}
        channel.setblocking(True)
        process_limits.forbid_core_dumps()

    def _reap(self) -> None:
        """Reports ended workers to the host, after killing the other processes of their groups."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            lifeline = self._lifelines.pop(ended.si_pid, None)
            if lifeline is not None:
                process_limits.signal_group(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if lifeline is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(lifeline)
                self._report(lifeline, ENDED, os.waitstatus_to_exitcode(status))

    def _report(self, lifeline: socket.socket, kind: bytes, value: int) -> None:
        with contextlib.suppress(OSError):  # The host may have closed the lifeline.
            lifeline.sendall(END.pack(kind, value))
        lifeline.close()

    def _end_all(self) -> None:
        """Kills workers and descendants that left their group, until none is left."""
        signal.set_wakeup_fd(-1)
        deadline = time.monotonic() + _END_SECS
        while time.monotonic() < deadline:
            for pid in {*self._lifelines, *process_limits.process_tree(os.getpid()).pids[1:]}:
                process_limits.kill_tree(pid)
            try:
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                    self._lifelines.pop(pid, None)
            except ChildProcessError:
                return
            time.sleep(0.01)
