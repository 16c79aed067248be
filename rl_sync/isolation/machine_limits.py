"""Limits of the machine that a run meets: full and read-only disks, open files, memory."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
import threading

LEAST_OPEN_FILES = 256
"""Files that each process of a run must be able to open; a snapshot opens a hundred at once."""

LEAST_ADDRESS_BYTES = 2 << 30
"""Address space that each process of a run needs: its libraries alone take half of it."""

_MOST_OPEN_FILES = 1 << 16
_MIB = 1 << 20
_FAILED = 1
_NO_THREAD = "can't start new thread"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_log = logging.getLogger(__name__)


def allow_open_files() -> None:
    """Raises the limit of open files of this process and its later children, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_limits() -> None:
    """Checks that the limits of this process, which its children inherit, leave room for a run.

    Raises:
      ValueError: a limit is too low.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < LEAST_OPEN_FILES:
        raise ValueError(
            f"Each process of a run must be able to open {LEAST_OPEN_FILES} files, and the limit"
            f" here is {files}: raise it, as with ulimit -n 4096."
        )
    if lacking := lacking_address_space(LEAST_ADDRESS_BYTES, "Each process of a run"):
        raise ValueError(lacking)


def lacking_address_space(least_bytes: int, who: str) -> str | None:
    """Returns a sentence if the address space of this process is limited to less than it needs.

    Args:
      least_bytes: address space that is needed.
      who: subject of the sentence.
    """
    space = _address_limit()
    if space is None or space >= least_bytes:
        return None
    return (
        f"{who} needs {least_bytes // _MIB:,} MiB of address space, and the limit here is"
        f" {space // _MIB:,} MiB: raise it, as with ulimit -v unlimited."
    )


def limit_met(error: BaseException) -> str | None:
    """Describes the limit that an error has met, with the way out; None for other errors."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return f"There is no more memory for this process.{address_hint() or ' Free some.'}"
    if not isinstance(error, OSError) or (way := way_out(error)) is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}. {way[0].upper()}{way[1:]}, and run it again."


def end_if_exhausted(error: BaseException | None) -> None:
    """Ends this process at once if an error says that it gets no more memory or threads.

    It could answer nobody any more; a process in its place may get them.
    """
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    ):
        try:
            why = str(error) or "There is no more memory"
            _log.critical("%s.%s This process ends.", why, address_hint())
        finally:  # The line needs memory, too.
            os._exit(_FAILED)


def end_when_exhausted() -> None:
    """Makes a lack of memory or threads that no caller sees end the process.

    A thread may die of it before it is known to run; whoever started it then waits forever. See
    `end_if_exhausted`.
    """
    of_threads, of_others = threading.excepthook, sys.unraisablehook

    def note(failed: threading.ExceptHookArgs) -> None:
        end_if_exhausted(failed.exc_value)
        of_threads(failed)

    def note_unraisable(failed: sys.UnraisableHookArgs) -> None:
        end_if_exhausted(failed.exc_value)
        of_others(failed)

    threading.excepthook, sys.unraisablehook = note, note_unraisable


def way_out(error: OSError) -> str | None:
    """Returns the remedy for an error of the disk or of open files, as an imperative clause.

    It is None for other errors.
    """
    if error.errno in _FULL:
        return "make room"
    if error.errno == errno.EROFS:
        return "make the file system writable"
    if error.errno in _FILES:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"raise the limit of open files, which is {files}, as with ulimit -n 4096"
    return None


def address_hint() -> str:
    """Returns a sentence about the limit of this process's address space; empty without one."""
    space = _address_limit()
    if space is None:
        return ""
    return (
        f" The address space of each process is limited to {space // _MIB:,} MiB here: raise it, as"
        " with ulimit -v unlimited."
    )


def _address_limit() -> int | None:
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if space == resource.RLIM_INFINITY else space
