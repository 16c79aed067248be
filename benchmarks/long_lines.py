"""Machines in network namespaces, joined by lines with a latency, a bandwidth and a loss.

Linux's `netem` does this where its module is there. Here a process forwards the packets of TUN
devices, one in each namespace, which works with any kernel. It takes root.

    with long_lines(3, Line(latency_secs=0.02, bits_per_sec=1e9)) as network:
        subprocess.Popen(network.machines[1].command("python", …))
        network.cut(1, 5.0)

As on real lines, a packet waits for those before it, and is dropped if more than 50 ms of them wait
(or 64 KB). The latency is that of one way.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import multiprocessing
import os
import random
import select
import struct
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

_SETIFF, _TUN, _NO_INFO = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_DEVICE = "line0"
_QUEUE_SECS, _LEAST_QUEUE = 0.05, 1 << 16
_PACKET = 1 << 16
_FAST, _LARGE_MTU, _MTU = 5e8, 9000, 1500
_numbers = itertools.count()


class Line(NamedTuple):
    """A line between a machine and all others.

    Attributes:
      latency_secs: seconds of one way.
      bits_per_sec: bandwidth in each direction.
      loss: share of the packets that are lost.
    """

    latency_secs: float = 0.0
    bits_per_sec: float = 1e10
    loss: float = 0.0

    def __str__(self) -> str:
        rate = self.bits_per_sec / 1e6
        lost = f", {self.loss:.1%} lost" if self.loss else ""
        return f"{1000 * self.latency_secs:g} ms, {rate:,.0f} Mbit/s{lost}"


class LineMachine(NamedTuple):
    """A machine at the end of a line.

    Attributes:
      address: its address.
      namespace: its network namespace.
    """

    address: str
    namespace: str

    def command(self, *argv: str) -> list[str]:
        """Returns a command that runs there."""
        return ["ip", "netns", "exec", self.namespace, *argv]


class LineNetwork(NamedTuple):
    """Machines, and the process that forwards their packets.

    Attributes:
      machines: the machines.
      control: takes (machine, seconds) to cut its line.
    """

    machines: list[LineMachine]
    control: Connection

    def cut(self, machine: int, secs: float) -> None:
        """Lets a machine's packets be lost for some seconds."""
        self.control.send((machine, secs))


@contextlib.contextmanager
def long_lines(count: int, line: Line, seed: int = 0) -> Iterator[LineNetwork]:
    """Makes machines, each with such a line; the first one's line takes no time."""
    with contextlib.ExitStack() as stack:
        machines, devices = [], []
        mtu = _LARGE_MTU if line.bits_per_sec > _FAST else _MTU
        for number in range(count):
            name = f"line{os.getpid()}-{next(_numbers)}"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
            machine = LineMachine(f"10.78.0.{1 + number}", name)
            devices.append(_device(name))
            stack.callback(os.close, devices[-1])
            inside = ("ip", "-n", name)
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "addr", "add", f"{machine.address}/24", "dev", _DEVICE)
            _run(*inside, "link", "set", _DEVICE, "up", "mtu", str(mtu), "txqueuelen", "2000")
            machines.append(machine)
        ours, theirs = multiprocessing.Pipe()
        forward = multiprocessing.get_context("fork").Process(
            target=_forward, args=(devices, line, theirs, seed), daemon=True
        )
        forward.start()
        stack.callback(forward.join)
        stack.callback(forward.kill)
        yield LineNetwork(machines, ours)


def _device(namespace: str) -> int:
    """Makes a TUN device in a namespace; returns its descriptor."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _enter(other)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _SETIFF, struct.pack("16sH22x", _DEVICE.encode(), _TUN | _NO_INFO))
        return device
    finally:
        _enter(own)
        os.close(own)
        os.close(other)


def _enter(namespace: int) -> None:
    """Moves this thread into a network namespace (setns; in `os` since Python 3.12)."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _forward(devices: list[int], line: Line, control: Connection, seed: int) -> None:
    """Forwards packets until it is killed."""
    drawn = random.Random(seed)
    number_of = {device: number for number, device in enumerate(devices)}
    free = [0.0] * (2 * len(devices))  # When each direction of each line has sent all.
    cut_until = [0.0] * len(devices)
    waiting: list[tuple[float, int, int, bytes]] = []
    counter = itertools.count()
    queue_secs = max(_QUEUE_SECS, 8 * _LEAST_QUEUE / line.bits_per_sec)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        ready, _, _ = select.select([*devices, control.fileno()], [], [], timeout)
        now = time.monotonic()
        for source in ready:
            if source == control.fileno():
                machine, secs = control.recv()
                cut_until[machine] = now + secs
                continue
            for _ in range(64):
                try:
                    packet = os.read(source, _PACKET)
                except BlockingIOError:
                    break
                if packet[0] >> 4 != 4:
                    continue
                sender, receiver = number_of[source], packet[19] - 1
                if not 0 <= receiver < len(devices):
                    continue
                # The first machine's own line takes no time; a packet between two others passes
                # both of their lines.
                at, is_lost = now, False
                for end, direction in ((sender, 0), (receiver, 1)):
                    if end == 0:
                        continue
                    lane = 2 * end + direction
                    begins = max(at, free[lane])
                    is_lost |= begins - at > queue_secs or drawn.random() < line.loss
                    is_lost |= cut_until[end] > now
                    if is_lost:
                        break
                    free[lane] = begins + 8 * len(packet) / line.bits_per_sec
                    at = free[lane] + line.latency_secs
                if not is_lost:
                    heapq.heappush(waiting, (at, next(counter), devices[receiver], packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            *_, device, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(device, packet)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
