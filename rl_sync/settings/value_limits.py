"""Limits of values that several sections have: ports and times."""

from __future__ import annotations

from typing import Any

PORT: dict[str, Any] = {"least": 0, "greatest": 65_535}
"""Bounds of the port of a server."""

WAIT_SECS: dict[str, Any] = {"unit": "seconds", "above": 0, "greatest": 1e8}
"""Unit and bounds of a time that something may take: far below what timers bear."""
