"""Compiled programs, kept on disk by JAX, so that a role that starts again reads what one of an
earlier run, or of an earlier start, had to compile.

The key of a program covers all that its code depends on: its operations and shapes, the versions
of JAX and XLA, the compiler's flags, and the device; of a CPU also the instructions that it has.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import jax
from jax._src import compiler, distributed

from rl_sync.settings.records import ConfigError

DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
"""The variable with which a user gives JAX a cache."""

_MOST_BYTES = 1 << 30
_LEAST_COMPILE_SECS = 0.05  # Faster ones, of which there are many, are not worth a file each.
_LOCK_SECS = 10.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Programs:
    """What this process asked JAX to compile since `use`.

    Attributes:
      needed: how many programs.
      read: how many of them the cache had.
    """

    needed: int = 0
    read: int = 0

    def count(self, event: str, **_: str | int) -> None:
        """Listens to JAX's events."""
        self.needed += event == "/jax/compilation_cache/compile_requests_use_cache"
        self.read += event == "/jax/compilation_cache/cache_hits"


def directory(configured: str | None, environment: Mapping[str, str]) -> str | None:
    """Where programs are kept; None for nowhere.

    Args:
      configured: `launch.compilation_cache`: None for one in the user's cache directory, empty for
        nowhere.
      environment: whose `JAX_COMPILATION_CACHE_DIR` goes before that.
    """
    if DIRECTORY in environment:
        return environment[DIRECTORY] or None
    if configured is not None:
        return os.path.abspath(os.path.expanduser(configured)) if configured else None
    caches = os.path.expanduser(environment.get("XDG_CACHE_HOME") or "~/.cache")
    # A user without a home has no such directory.
    return os.path.join(caches, "rl_sync", "programs") if os.path.isabs(caches) else None


def use(configured: str | None, environment: Mapping[str, str]) -> Programs:
    """Has JAX keep programs; call it before anything is compiled.

    The oldest go when there are too many. A cache that the environment gives JAX keeps the limits
    that the environment gives it. A directory that cannot be used, or that others may write to, is
    warned of, and done without.

    Args:
      configured, environment: see `directory`.

    Returns:
      What will be counted from now on.
    """
    programs = Programs()
    jax.monitoring.register_event_listener(programs.count)
    _let_every_process_write()
    path = directory(configured, environment)
    if path is None or DIRECTORY in environment:
        return programs
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        _refuse_open(path)
        _drop_unfinished(Path(path))
    except OSError as error:
        _log.warning(
            "Compiled programs cannot be kept in %s, so everything is compiled anew: %s. Name"
            " another directory with launch.compilation_cache, or none with an empty one.",
            path,
            error,
        )
        return programs
    jax.config.update("jax_compilation_cache_dir", path)
    # A cache with a bound is locked while it is read or written, one without is not.
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_SECS)
    return programs


def check(configured: str | None, environment: Mapping[str, str]) -> None:
    """Refuses a directory that others may write to; one that JAX was given is its giver's.

    Args:
      configured, environment: see `directory`.

    Raises:
      ConfigError: others may write there.
    """
    path = directory(configured, environment)
    if path is None or DIRECTORY in environment or not os.path.isdir(path):
        return
    try:
        _refuse_open(path)
    except PermissionError as error:
        raise ConfigError(
            f"Compiled programs cannot be kept in {path}: {error}. Or name another directory with"
            " --config.launch.compilation_cache, or none with an empty one."
        ) from error


def _refuse_open(path: str) -> None:
    """Raises PermissionError if others than this user, and root, may write to a directory.

    A sticky one is no exception: there, too, others can put a program before we do.
    """
    status = os.stat(path)
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            f"user {status.st_uid} owns it, and who writes there runs code as you. Use one of your"
            " own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"its mode is {stat.S_IMODE(status.st_mode):03o}, so others may write there, and who"
            f" does runs code as you. Take that from them with chmod go-w {path}"
        )


class _Cluster:
    """What JAX's compiler sees of a cluster: this process as the first."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def _let_every_process_write() -> None:
    """Lets explorers keep their programs; replaces a private name of JAX, for want of a public one.

    JAX takes all processes of a cluster to run the same programs, and has only process 0 write
    them. In ours each role has its own. No option of JAX says so, and no function writes an entry:
    `jax._src.compiler` asks `distributed.global_state.process_id` before it writes a program and
    before it lets XLA write what it has tuned. (jax-ml/jax#18819 asked for an option.) So that
    module alone sees the process as the first. If a later JAX asks elsewhere, explorers in a
    cluster compile anew at each start, and a test notices.
    """
    seen: Any = SimpleNamespace(global_state=_Cluster())
    compiler.distributed = seen


def _drop_unfinished(path: Path) -> None:
    """Removes programs that somebody was killed while writing; JAX would stumble over them."""
    # JAX's own lock, and JAX's order: what has a time of access was written before that.
    with filelock.FileLock(path / ".lockfile", timeout=_LOCK_SECS):
        for entry in path.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()
