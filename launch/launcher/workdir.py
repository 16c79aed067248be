"""The work directory of a run: held by one run at a time, and what a run goes on from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from rl_sync.runtime.records import read_config
from rl_sync.runtime.settings import WEIGHTS_DIR, ConfigError, RunSettings
from rl_sync.runtime.snapshots import WARM_UP_DIR, SnapshotError, latest_snapshot, newest_whole
from rl_sync.weights.versions import VersionDirectory

CONFIG_FILE = "config.json"
CHECKPOINTS_DIR = "checkpoints"
REPLAY_DIR = "replay"
LOGS_DIR = "logs"
_LOCK_FILE = ".lock"
_EARLIER_DIR = "earlier"
# What must stay as it was for a run to go on.
_FIXED = ("seed", "task", "model", "optimizer")


def saved(workdir: Path) -> tuple[int | None, int | None]:
    """What a run can go on from: the warm-up step and the trainer step of its newest snapshots.

    Each is None where there is no such snapshot; a trainer step goes before a warm-up step.
    """
    snapshots = workdir / CHECKPOINTS_DIR
    return latest_snapshot(snapshots / WARM_UP_DIR), latest_snapshot(snapshots)


def settings_of(config: Mapping[str, Any]) -> RunSettings:
    """The settings of a resolved config, with a new directory under `runs/` if it names none.

    Raises:
      ConfigError: what `RunSettings.from_config` raises.
    """
    named = config.get("workdir") is not None
    settings = RunSettings.from_config(config if named else {**config, "workdir": ""})
    if settings.workdir:
        chosen = Path(settings.workdir)
    else:
        made = time.strftime("%Y%m%d-%H%M%S")
        chosen = Path("runs", f"{settings.name}-{settings.sync.mode}-{made}")
    return dataclasses.replace(settings, workdir=str(chosen.absolute()))


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
    """Makes the directory and holds it; the lock goes with the process.

    Raises:
      ConfigError: another run holds it, or it cannot be made.
    """
    lock = filelock.FileLock(workdir / _LOCK_FILE, timeout=0)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        (workdir / _LOCK_FILE).write_text(f"{os.getpid()}\n")
    except filelock.Timeout as error:
        holder = (workdir / _LOCK_FILE).read_text().strip()
        raise ConfigError(
            f"Another run (process {holder or 'unknown'}) holds the work directory {workdir}. Wait"
            " for it or stop it, or give another --config.workdir."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"The work directory {workdir} cannot be made: {error.strerror or error}. Give another"
            " --config.workdir, where you may write."
        ) from error
    try:
        yield
    finally:
        lock.release()


def prepare(workdir: Path, settings: RunSettings) -> int | None:
    """Readies a held directory: for a new run, or to go on from the newest snapshot.

    Records of an earlier attempt that left no snapshot are moved to `earlier/`.

    Returns:
      The trainer step to go on from; None for a new run.

    Raises:
      ConfigError: the run in the directory is another one, none of its snapshots is whole, or
        weights cannot be written where they are to go.
    """
    config = settings.resolved()
    saved = workdir / CONFIG_FILE
    step = _whole_snapshot(workdir / CHECKPOINTS_DIR)
    if saved.exists() and step is not None:
        before = read_config(saved)
        differing = [name for name in _FIXED if before.get(name) != config.get(name)]
        if differing:
            raise ConfigError(
                f"{workdir} holds a run with another config.{differing[0]}"
                f" ({_difference(before.get(differing[0]), config.get(differing[0]))}), so this one"
                " cannot go on from it. Give another --config.workdir, or the same config."
            )
    elif any(path.name != _LOCK_FILE for path in workdir.iterdir()):
        _set_aside(workdir)
    # Weights and groups in transit belong to processes that are gone.
    for name in (WEIGHTS_DIR, REPLAY_DIR):
        shutil.rmtree(workdir / name, ignore_errors=True)
    if settings.sync.directory is not None:
        _clear_weights(settings.weights_directory(workdir))
    temporary = saved.with_suffix(".tmp")
    temporary.write_text(json.dumps(config, indent=2) + "\n")
    temporary.replace(saved)
    return step


def _whole_snapshot(directory: Path) -> int | None:
    """The step that the trainer will find to go on from; damaged snapshots are set aside."""
    try:
        return newest_whole(directory, aside=True, say=lambda line: print(f"WARNING: {line}"))
    except SnapshotError as error:
        raise ConfigError(str(error)) from error


def _clear_weights(directory: str) -> None:
    try:
        VersionDirectory(directory).clear()
    except Exception as error:  # Object stores have errors of their own.
        raise ConfigError(
            f"Weights cannot be written to {directory} ({type(error).__name__}: {error}). Give"
            " another --config.sync.directory, or what it takes to write there."
        ) from error


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return f"{name}: {before.get(name)!r} there, {now.get(name)!r} here"
    return f"{before!r} there, {now!r} here"


def _set_aside(workdir: Path) -> None:
    ours = {CONFIG_FILE, CHECKPOINTS_DIR, WEIGHTS_DIR, REPLAY_DIR, LOGS_DIR, "spans", "tensorboard"}
    ours |= {"metrics.jsonl", "ledger.jsonl", "consumed.jsonl"}
    found = [path for path in workdir.iterdir() if path.name in ours]
    if not found:
        return
    target = workdir / _EARLIER_DIR / time.strftime("%Y%m%d-%H%M%S")
    target.mkdir(parents=True)
    for path in found:
        path.rename(target / path.name)
