"""Type of a rule, and a check that several rules make."""

from __future__ import annotations

from collections.abc import Callable

from rl_sync.settings.records import require
from rl_sync.settings.run_settings import RunSettings

LAST_PORT = 65_535

Rule = Callable[[RunSettings], object]
"""A check that raises `ValueError` if settings break a rule, with the value and the way out."""


def require_address(
    name: str, address: str | None, otherwise: str = "leave it out to have a server started"
) -> None:
    """Rejects an address that is not HOST:PORT.

    Args:
      name: name of the setting.
      address: its value; None if it is not set.
      otherwise: clause with the way out.
    """
    if address is None:
        return
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdecimal() and 0 < int(port) <= LAST_PORT,
        f"{name}={address!r} must be HOST:PORT, such as 10.0.0.2:8000; {otherwise}.",
    )
