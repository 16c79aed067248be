"""Failures that are reported without a traceback, because their message is for the user."""

from __future__ import annotations

import logging

from rl_sync.records.json_lines import RecordsError
from rl_sync.settings.records import ConfigError


class RunEndedError(RuntimeError):
    """A run cannot go on; the message tells the user why, and what to do."""


def log_failure(log: logging.Logger, who: str, error: Exception) -> None:
    """Logs the error of a role, with a traceback unless its message is for the user."""
    if isinstance(error, RunEndedError | RecordsError | ConfigError):
        log.error("%s failed: %s", who, error)
    else:
        log.error("%s failed", who, exc_info=error)
