"""Failures that are reported without a traceback, because their message is for the user."""

from __future__ import annotations

import logging

from rl_sync.images import ImageError
from rl_sync.isolation.machine_limits import limit_met
from rl_sync.records.json_lines import RecordsError
from rl_sync.settings.records import ConfigError

_FULL = "RESOURCE_EXHAUSTED"
_LEFT_NONE = ("CUDA_ERROR_OUT_OF_MEMORY", "DNN library initialization failed")
"""Errors of CUDA's libraries where programs, this one included, have left them no memory."""
_NO_BACKEND = "Unable to initialize backend 'cuda'"


class RunEndedError(RuntimeError):
    """A run cannot continue; the message gives the user the reason and the remedy."""


class DeviceFullError(RunEndedError):
    """A device has no more memory."""


def explained(error: Exception) -> Exception:
    """Returns an error of JAX's devices as one for the user, and every other as it is."""
    text = str(error)
    if not isinstance(error, RuntimeError) or isinstance(error, RunEndedError):
        return error
    if _NO_BACKEND in text:
        why = text.partition(_NO_BACKEND)[2].removeprefix(": ").partition(" (set JAX")[0]
        return RunEndedError(
            f"JAX cannot use this machine's GPU: {why}. If other processes hold its memory"
            " (nvidia-smi), end them, or choose another GPU with CUDA_VISIBLE_DEVICES. After a"
            " change of JAX or of the driver, install both for the same CUDA version."
            " JAX_PLATFORMS=cpu computes on the CPU."
        )
    if text.startswith(_FULL):
        why = text.removeprefix(_FULL).removeprefix(": ").partition("\n")[0].rstrip(".")
        return DeviceFullError(
            f"The device has no more memory: {why}. If another program holds some of a GPU's"
            " (nvidia-smi), end it, or choose another GPU with CUDA_VISIBLE_DEVICES."
        )
    if any(one in text for one in _LEFT_NONE):
        why = text.partition("\n")[0].rstrip(".")
        return RunEndedError(
            f"CUDA's libraries got no memory of the GPU, it seems: {why}. If other programs hold it"
            " (nvidia-smi), end them. Otherwise reserve less for arrays, as with"
            " XLA_PYTHON_CLIENT_MEM_FRACTION=0.75."
        )
    return error


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
