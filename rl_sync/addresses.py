"""Addresses of servers and of this machine.

A server's is `host:port`; an IPv6 address is in brackets, as in `[fd00::1]:8000`.
"""

from __future__ import annotations

import socket


def address_of(host: str, port: int) -> str:
    """Joins a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parts_of(address: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port.

    Raises:
      ValueError: there is no port.
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def interface_towards(address: str) -> str:
    """Returns the address at which another machine, at `host:port`, can reach this machine."""
    host, port = parts_of(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Sends nothing: it only chooses a route.
        return probe.getsockname()[0]
