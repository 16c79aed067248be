"""Fork server: a process that has imported an environment, and forks workers from itself.

It runs no environment and no thread of its own. It reaps its workers, tells the host how they
ended, and kills them when the host asks for it, or is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator

from rl_sync.environments.hosts import worker
from rl_sync.environments.hosts.construction import Construction

COMMAND = struct.Struct("<cq")
"""A host's command and the number of a worker; a socket comes with `FORK`."""
FORK, KILL = b"f", b"k"
EVENT = struct.Struct("<cqi")
"""An event, the number of a worker, and the exit code (negative: a signal) or the `errno`."""
ENDED, NOT_FORKED = b"e", b"n"
STARTED = struct.Struct("<I")
"""The length of the text that says why the server cannot serve; 0 if it can."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FAULT_BYTES = 1 << 16
_PARENT_CHECK_SECS = 0.5
_END_SECS = 3.0
_MUST_NOT_BE_COPIED = ("jax", "jaxlib")


def main(descriptor: int, reference: str, memory_bytes: int) -> None:
    """Serves a host until it is gone.

    Args:
      descriptor: of the socket to the host.
      reference: the environment.
      memory_bytes: address space that an episode may add to the server's; 0 for no limit.
    """
    control = socket.socket(fileno=descriptor)
    parent = os.getppid()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with _ended_with(parent, control):
        construction, fault = _prepared(reference)
    text = fault.encode()[:_FAULT_BYTES]
    control.sendall(STARTED.pack(len(text)) + text)
    if construction is not None:
        _ForkServer(control, parent, construction, memory_bytes).run()


def readable(sockets: Collection[socket.socket], timeout_secs: float) -> set[socket.socket]:
    """Waits until sockets have something to read, or are at their end, and returns these."""
    with selectors.DefaultSelector() as selector:  # `select` knows small descriptors only.
        for one in sockets:
            selector.register(one, selectors.EVENT_READ, one)
        return {key.data for key, _ in selector.select(timeout_secs)}


def _prepared(reference: str) -> tuple[Construction | None, str]:
    """Imports an environment; returns it, or why it cannot be served."""
    try:
        construction = Construction.of(reference)
        construction.check()
        construction.warm_up()
        worker.warm_up()
    except ValueError as error:
        return None, str(error)
    except BaseException as error:
        traceback.print_exc()
        return None, f"{reference!r} cannot be prepared: {type(error).__name__}: {error}"
    copied = [name for name in _MUST_NOT_BE_COPIED if name in sys.modules]
    if copied:
        return None, (
            f"{reference!r} imports {copied[0]} with its module. Workers are copies of the process"
            f" that imported it, and the state of {copied[0]} must not be copied: import it inside"
            " the methods that need it."
        )
    return construction, ""


@contextlib.contextmanager
def _ended_with(parent: int, control: socket.socket) -> Iterator[None]:
    """Ends the process if the host goes while an import takes its time."""
    done, ours = socket.socketpair()

    def follow() -> None:
        while os.getppid() == parent:
            ready = readable([control, done], _PARENT_CHECK_SECS)
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

    def __init__(
        self, control: socket.socket, parent: int, construction: Construction, memory_bytes: int
    ) -> None:
        self._control, self._parent = control, parent
        self._construction, self._memory_bytes = construction, memory_bytes
        self._pid = os.getpid()
        self._numbers: dict[int, int] = {}  # Of workers, by process.
        self._wake, self._waker = socket.socketpair()
        for one in (self._wake, self._waker):
            one.setblocking(False)

    def run(self) -> None:
        """Serves until the host is gone, then ends all workers."""
        _adopt_orphans()
        # What was imported never becomes garbage; collecting it would copy its pages in workers.
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            while self._serve_once():
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # The host is gone.
        finally:
            self._end_all()

    def _serve_once(self) -> bool:
        ready = readable([self._control, self._wake], _PARENT_CHECK_SECS)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(1 << 10)
        self._reap()
        if self._control in ready:
            data, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
            if not data:
                return False
            command, number = COMMAND.unpack(data)
            if command == FORK:
                self._fork(number, socket.socket(fileno=descriptors[0]))
            else:
                for pid in [pid for pid, of in self._numbers.items() if of == number]:
                    _kill(pid)
        return os.getppid() == self._parent

    def _fork(self, number: int, channel: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._control.sendall(EVENT.pack(NOT_FORKED, number, error.errno))
            channel.close()
            return
        if pid == 0:
            status = 1
            try:
                self._become_worker(channel)
                worker.serve(channel, self._construction)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        with contextlib.suppress(OSError):  # Both do, since either may be first.
            os.setpgid(pid, pid)
        channel.close()
        self._numbers[pid] = number

    def _become_worker(self, channel: socket.socket) -> None:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._control, self._wake, self._waker):
            one.close()
        channel.setblocking(True)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._memory_bytes:
            most = _address_space_bytes() + self._memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def _reap(self) -> None:
        """Tells the host of workers that ended; what is left of their groups is killed first."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            number = self._numbers.pop(ended.si_pid, None)
            if number is not None:
                _kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                self._control.sendall(EVENT.pack(ENDED, number, code))

    def _end_all(self) -> None:
        """Kills workers, and processes of theirs that left their group, until there are none."""
        signal.set_wakeup_fd(-1)
        deadline = time.monotonic() + _END_SECS
        while time.monotonic() < deadline:
            for pid in {*self._numbers, *_children(os.getpid())}:
                _kill(pid)
            try:
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                    self._numbers.pop(pid, None)
            except ChildProcessError:
                return
            time.sleep(0.01)


def _adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _kill(pid: int) -> None:
    """Kills a child of this process, its group, and all processes below it."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    _kill_group(pid)
    for one in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Returns the children of a process; none where the kernel does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                found += map(int, children.read().split())
    return found


def _address_space_bytes() -> int:
    """Returns the address space of this process; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
