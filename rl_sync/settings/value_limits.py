"""Limits of values that several sections have: ports, addresses, times, commands."""

from __future__ import annotations

import shlex
import string
from typing import Any

from rl_sync.settings.records import require

_LAST_PORT = 65_535
PORT: dict[str, Any] = {"least": 0, "greatest": _LAST_PORT}
"""Bounds of the port of a server."""

WAIT_SECS: dict[str, Any] = {"unit": "seconds", "above": 0, "greatest": 1e8}
"""Unit and bounds of a time that something may take: far below what timers bear."""


def require_address(name: str, address: str) -> None:
    """Raises `ConfigError` unless a text is a host and a port."""
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdecimal() and 0 < int(port) <= _LAST_PORT,
        f"{name}={address!r} must be HOST:PORT, such as 10.0.0.2:8000; leave it out to have a"
        " server started.",
    )


def require_shell(name: str, shell: str) -> None:
    """Raises `ConfigError` unless a command has {host} in it, and nothing else in braces."""
    require(
        _names_host_alone(shell),
        f"{name}={shell} must say where {{host}} goes, as in 'ssh {{host}}': with that alone in"
        " braces (double others: {{ and }}), and quotation marks that are closed.",
    )


def _names_host_alone(shell: str) -> bool:
    try:
        words = shlex.split(shell)
        parts = [part for word in words for part in string.Formatter().parse(word)]
        for word in words:
            word.format(host="")
    except (ValueError, KeyError, IndexError):
        return False
    return {name for _, name, _, _ in parts if name is not None} == {"host"}
