"""Ports for servers that are started later, and whose addresses must be known before."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Sequence

# Below those that operating systems give to whoever asks for any port, outgoing connections too
# (from 32,768 on Linux, from 49,152 elsewhere): such a one may be gone when the server binds.
CANDIDATES: Sequence[int] = range(20_000, 30_000)


def interface_towards(address: str) -> str:
    """The address of this machine that another one, at `host:port`, can reach it at."""
    host, _, port = address.rpartition(":")
    family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))  # Sends nothing: it chooses a route.
        return probe.getsockname()[0]


class HeldPorts:
    """Free ports for servers that other processes start later.

    While they are held, nobody else who looks for free ports here gets them. (On Linux: elsewhere
    a server could not have them either, so that they are only looked up.)

    Args:
      host: the address of this machine that they are ports of.
    """

    def __init__(self, host: str):
        self._host = host
        self._sockets = contextlib.ExitStack()

    def take(self, count: int) -> list[int]:
        """As many different ports that nobody has.

        Raises:
          OSError: there are not so many.
        """
        found: list[int] = []
        for port in random.sample(CANDIDATES, len(CANDIDATES)):
            if len(found) == count:
                break
            if self._hold(port):
                found.append(port)
        if len(found) < count:
            raise OSError(
                f"Of the ports {CANDIDATES[0]} to {CANDIDATES[-1]} of {self._host} only"
                f" {len(found)} are free, and {count} are needed."
            )
        return found

    def close(self) -> None:
        """Holds them no longer."""
        self._sockets.close()

    def _hold(self, port: int) -> bool:
        with contextlib.ExitStack() as owned:
            probe = owned.enter_context(socket.socket())
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
            # Linux lets a server that asks for it, as all do, have what is bound like this and not
            # listened on; it refuses who does not ask, as the line above.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":
                self._sockets.push(owned.pop_all())
        return True


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has now; who else looks for some may be given the same.

    Raises:
      OSError: there are not so many.
    """
    with contextlib.closing(HeldPorts(host)) as held:
        return held.take(count)
