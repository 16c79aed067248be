"""JAX's compilation cache on disk, so that a restarted role need not compile again.

The key of a program covers everything that its code depends on: its operations and shapes, the
versions of JAX and XLA, the compiler's flags, and the device; on a CPU also its instruction set.
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
"""Environment variable with which users set JAX's cache directory."""

_MOST_BYTES = 1 << 30
_LEAST_COMPILE_SECS = 0.05  # Programs that compile faster are many, and not worth a file each.
_LOCK_SECS = 10.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class CompilationCounts:
    """Counts of the programs that this process has asked JAX to compile since `use`.

    Attributes:
      needed: number of programs.
      read: number of programs that were found in the cache.
    """

    needed: int = 0
    read: int = 0

    def count(self, event: str, **_: str | int) -> None:
        """Counts an event of JAX."""
        self.needed += event == "/jax/compilation_cache/compile_requests_use_cache"
        self.read += event == "/jax/compilation_cache/cache_hits"


def directory(configured: str | None, environment: Mapping[str, str]) -> str | None:
    """Returns the directory of the cache, or None if there is no cache.

    Args:
      configured: value of `launch.compilation_cache`: None for a directory in the user's cache
        directory, empty for no cache.
      environment: environment variables; `JAX_COMPILATION_CACHE_DIR` has precedence.
    """
    if DIRECTORY in environment:
        return environment[DIRECTORY] or None
    if configured is not None:
        return os.path.abspath(os.path.expanduser(configured)) if configured else None
    caches = os.path.expanduser(environment.get("XDG_CACHE_HOME") or "~/.cache")
    # A user without a home directory has no cache directory.
    return os.path.join(caches, "rl_sync", "programs") if os.path.isabs(caches) else None


def use(configured: str | None, environment: Mapping[str, str]) -> CompilationCounts:
    """Makes JAX keep compiled programs; call it before anything is compiled.

    The oldest programs are deleted when the cache is full. A cache from the environment keeps its
    own limits. If the directory cannot be used, or others may write to it, a warning is logged, and
    no cache is used.

    Args:
      configured, environment: see `directory`.

    Returns:
      The counts, which start now.
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
            "Compiled programs cannot be kept in %s, so all are compiled again: %s. Set another"
            " directory with launch.compilation_cache, or an empty one for no cache.",
            path,
            error,
        )
        return programs
    jax.config.update("jax_compilation_cache_dir", path)
    # JAX locks a cache during reads and writes only if its size is limited.
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_SECS)
    return programs


def check(configured: str | None, environment: Mapping[str, str]) -> None:
    """Rejects a cache directory that others may write to, unless the environment sets it.

    Args:
      configured, environment: see `directory`.

    Raises:
      ConfigError: others may write to the directory.
    """
    path = directory(configured, environment)
    if path is None or DIRECTORY in environment or not os.path.isdir(path):
        return
    try:
        _refuse_open(path)
    except PermissionError as error:
        raise ConfigError(
            f"Compiled programs cannot be kept in {path}: {error}. Or set another directory with"
            " --config.launch.compilation_cache, or an empty one for no cache."
        ) from error


def _refuse_open(path: str) -> None:
    """Raises PermissionError if anybody except this user and root may write to a directory.

    A sticky directory is rejected too: others can create a program there before we do.
    """
    status = os.stat(path)
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            f"user {status.st_uid} owns it, and whoever writes there runs code as you. Use a"
            " directory of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"its mode is {stat.S_IMODE(status.st_mode):03o}, so others may write there, and thus"
            f" run code as you. Remove their permission with chmod go-w {path}"
        )


class _Cluster:
    """The cluster as JAX's compiler sees it, in which this process is the first."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def _let_every_process_write() -> None:
    """Lets explorers store programs in the cache; patches a private name of JAX.

    JAX assumes that all processes of a cluster run the same programs, and lets only process 0 store
    them. In our clusters each role has its own programs. JAX has no option for this, and no public
    function that stores a program: `jax._src.compiler` checks `distributed.global_state.process_id`
    before it stores a program and before it lets XLA store autotuning results. (jax-ml/jax#18819
    asked for an option.) So that module, and no other, sees this process as the first. If a later
    JAX checks elsewhere, explorers in a cluster compile anew at each start, and a test fails.
    """
    seen: Any = SimpleNamespace(global_state=_Cluster())
    compiler.distributed = seen


def _drop_unfinished(path: Path) -> None:
    """Removes programs that a killed process left incomplete; JAX would fail on them."""
    # Uses JAX's own lock and relies on its order: it writes a program before its access time.
    with filelock.FileLock(path / ".lockfile", timeout=_LOCK_SECS):
        for entry in path.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()
