"""Failures that need no traceback: the message is for the user."""

from __future__ import annotations

import logging

from rl_sync.observe.jsonlines import RecordsError
from rl_sync.settings.records import ConfigError


class RunError(RuntimeError):
    """A run cannot go on: why, and what to do about it, for the user to read."""


def log_failure(log: logging.Logger, who: str, error: Exception) -> None:
    """Logs what a role failed with; with a traceback unless the message says it all."""
    if isinstance(error, RunError | RecordsError | ConfigError):
        log.error("%s failed: %s", who, error)
    else:
        log.error("%s failed", who, exc_info=error)
