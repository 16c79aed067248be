"""Ports for servers that are started later, and whose addresses must be known before."""

from __future__ import annotations

import random
import socket
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


def free_ports(host: str, count: int) -> list[int]:
    """As many different ports on which nobody listens.

    Raises:
      OSError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        if len(found) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise OSError(
            f"Of the ports {CANDIDATES[0]} to {CANDIDATES[-1]} of {host} only {len(found)} are"
            f" free, and {count} are needed."
        )
    return found
