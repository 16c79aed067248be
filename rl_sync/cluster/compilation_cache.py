"""JAX's compilation cache on disk, so that a restarted role need not compile again.

The key of a program covers everything that its code depends on: its operations and shapes, the
versions of JAX and XLA, the compiler's flags, and the device; for a CPU also its instructions.
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
"""The environment variable by which a user gives JAX a cache."""

_MOST_BYTES = 1 << 30
_LEAST_COMPILE_SECS = 0.05  # There are many faster ones, not worth a file each.
_LOCK_SECS = 10.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class CompilationCounts:
    """Counts of the programs that this process asked JAX to compile since `use`.

    Attributes:
      needed: the number of programs.
      read: the number of those that were in the cache.
    """

    needed: int = 0
    read: int = 0

    def count(self, event: str, **_: str | int) -> None:
        """Counts an event of JAX."""
        self.needed += event == "/jax/compilation_cache/compile_requests_use_cache"
        self.read += event == "/jax/compilation_cache/cache_hits"


def directory(configured: str | None, environment: Mapping[str, str]) -> str | None:
    """Returns the directory of the cache; None for no cache.

    Args:
      configured: `launch.compilation_cache`: None for one in the user's cache directory, empty for
        no cache.
      environment: the environment; its `JAX_COMPILATION_CACHE_DIR` has precedence.
    """
    if DIRECTORY in environment:
        return environment[DIRECTORY] or None
    if configured is not None:
        return os.path.abspath(os.path.expanduser(configured)) if configured else None
    caches = os.path.expanduser(environment.get("XDG_CACHE_HOME") or "~/.cache")
    # A user without a home has no such directory.
    return os.path.join(caches, "rl_sync", "programs") if os.path.isabs(caches) else None


def use(configured: str | None, environment: Mapping[str, str]) -> CompilationCounts:
    """Makes JAX keep compiled programs; call it before anything is compiled.

    The oldest programs are deleted when there are too many. A cache from the environment keeps its
    limits from there. If the directory cannot be used, or others may write to it, a warning is
    logged, and no cache is used.

    Args:
      configured, environment: see `directory`.

    Returns:
      The counts from now on.
    """
    programs = CompilationCounts()
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
    # JAX locks a cache during reads and writes only if its size is bounded.
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_SECS)
    return programs


def check(configured: str | None, environment: Mapping[str, str]) -> None:
    """Refuses a directory that others may write to; one from the environment is not checked.

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
    """Raises PermissionError if anybody except this user and root may write to a directory.

    A sticky directory is no exception: there, too, others can write a program before we do.
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
    """The cluster as JAX's compiler sees it: this process is the first."""

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
    """Removes programs that a killed process left unfinished; JAX would fail on them."""
    # JAX's own lock, and JAX's order: it writes a program before its time of access.
    with filelock.FileLock(path / ".lockfile", timeout=_LOCK_SECS):
        for entry in path.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()
