"""Finds ports for servers that start later, but whose addresses must be known now."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Sequence

# Below the ephemeral ports (from 32,768 on Linux, from 49,152 elsewhere), which operating systems
# also assign to outgoing connections. An ephemeral port may be taken by the time the server binds
# it.
CANDIDATES: Sequence[int] = range(20_000, 30_000)


class HeldPorts:
    """Free ports for servers that other processes start later.

    While they are held, no other `HeldPorts` on this machine gets them. (This works on Linux only.
    Elsewhere even the server could not bind a held port, so there the ports are only looked up.)

    Args:
      host: address of this machine that the ports belong to.
      candidates: ports to choose from; None for `CANDIDATES`.
    """

    def __init__(self, host: str, candidates: Sequence[int] | None = None):
        self._host, self._given = host, candidates
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets = contextlib.ExitStack()

    def take(self, count: int) -> list[int]:
        """Takes `count` different free ports.

        Raises:
          OSError: too few ports are free.
        """
        found: list[int] = []
        candidates = self._given or CANDIDATES
        for port in random.sample(candidates, len(candidates)):
            if len(found) == count:
                break
            if self._hold(port):
                found.append(port)
        if len(found) < count:
            raise OSError(
                f"A run needs {count} free ports of {candidates[0]} to {candidates[-1]} at"
                f" {self._host}, and there are {len(found)}: end other servers, give more ports"
                " (launch.ports), or set launch.host to another address of this machine."
            )
        return found

    def close(self) -> None:
        """Releases the ports."""
        self._sockets.close()

    def _hold(self, port: int) -> bool:
        with contextlib.ExitStack() as owned:
            probe = owned.enter_context(socket.socket(self._family))
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
            # On Linux a socket with SO_REUSEADDR, which all servers set, can bind a port that is
            # held like this, as nobody listens on it. A socket without the option, such as the
            # probe of another `HeldPorts` above, cannot.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":
                self._sockets.push(owned.pop_all())
        return True


def free_ports(host: str, count: int) -> list[int]:
    """Returns ports that are free now; another process that looks for free ports may get the same.

    Raises:
      OSError: too few ports are free.
    """
    with contextlib.closing(HeldPorts(host)) as held:
        return held.take(count)
