"""Addresses of servers, `host:port`; an IPv6 address is in brackets, as in `[fd00::1]:8000`."""

from __future__ import annotations


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
