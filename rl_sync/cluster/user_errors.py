"""Failures that are reported without a traceback, because their message is for the user."""

from __future__ import annotations

import logging

from rl_sync.images import ImageError
from rl_sync.isolation.machine_limits import limit_met
from rl_sync.records.json_lines import RecordsError
from rl_sync.settings.records import ConfigError


class RunEndedError(RuntimeError):
    """A run cannot continue; the message gives the user the reason and the remedy."""


def log_failure(log: logging.Logger, who: str, error: Exception) -> None:
    """Logs the error of a role, with a traceback unless its message is for the user."""
    if is_for_user(error):
        log.error("%s failed: %s", who, limit_met(error) or error)
    else:
        log.error("%s failed", who, exc_info=error)


def is_for_user(error: Exception) -> bool:
    """Says whether an error's message is for the user; then a restart would not help."""
    if isinstance(error, RunEndedError | RecordsError | ConfigError | ImageError):
        return True
    return isinstance(error, OSError) and limit_met(error) is not None
