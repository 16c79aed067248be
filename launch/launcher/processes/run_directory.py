"""Locks and prepares the work directory of a run, which may resume from it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import filelock

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.durability import flush_directory
from rl_sync.checkpoints.snapshot_folder import stored_shapes
from rl_sync.checkpoints.snapshots import (
    SnapshotError,
    latest_snapshot,
    newest_whole,
    snapshot_steps,
)
from rl_sync.cluster.gpus import machine_gpus
from rl_sync.launcher.processes.setting_changes import Change, changes_between, describe
from rl_sync.launcher.processes.snapshot_fit import check_fit
from rl_sync.learning.optimizer import rl_rate
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.roles.master.journal import JournalError, counted_steps
from rl_sync.roles.trainer.origins import leading_steps
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues, read_config
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.weights.deltas.version_files import VersionFiles
from rl_sync.workdir import Workdir

_WITHOUT_INFLUENCE = ("trainer.steps", "evaluation", "checkpoint", "observe")
"""Settings and sections whose change leaves the weights that batches make as they were."""


class Resumption(NamedTuple):
    """Point from which a run resumes, and its changed settings.

    Attributes:
      sft_step: the SFT step; None if SFT is over.
      step: the trainer step; None during SFT.
      changes: the changed settings.
      jump: a warning if the changes make the learning rate jump, or an empty text.
      continues: whether all roles go on where they were, as if the run had not ended. Otherwise it
        begins anew from the snapshot of the step.
    """

    sft_step: int | None
    step: int | None
    changes: tuple[Change, ...] = ()
    jump: str = ""
    continues: bool = False

    def __str__(self) -> str:
        where = f"SFT step {self.sft_step}" if self.step is None else f"trainer step {self.step}"
        if self.step is not None and not self.continues:
            where += ", from its snapshot"
        told = [f"  with {change}" for change in self.changes if change.is_told]
        jump = [f"  WARNING: {self.jump}"] if self.jump else []
        return "\n".join([f"Goes on from {where}.", *told, *jump])


def saved(workdir: Workdir) -> tuple[int | None, int | None]:
    """Returns the SFT step and the trainer step of a run's newest snapshots.

    Each is None if there is no such snapshot. If there is a trainer step, the run resumes from it.
    """
    return latest_snapshot(workdir.sft_snapshots), latest_snapshot(workdir.snapshots)


def settings_of(config: ConfigValues) -> RunSettings:
    """Returns the settings of a config, with a new directory under `runs/` if it names none.

    Raises:
      ConfigError: the settings are not valid; see `read_settings`.
    """
    named = config.get("workdir") is not None
    settings = read_settings(config if named else {**config, "workdir": ""})
    if settings.workdir:
        chosen = Path(settings.workdir)
    else:
        made = time.strftime("%Y%m%d-%H%M%S")
        chosen = Path("runs", f"{settings.name}-{settings.sync.mode}-{made}")
    settings = _placed(dataclasses.replace(settings, workdir=str(chosen.absolute())))
    return _dated(settings) if settings.tokenizer.date is None else settings


def _placed(settings: RunSettings) -> RunSettings:
    """Sets `launch.colocate`, unless it is set: on a machine's only GPU the roles take turns."""
    if len(machine_gpus(os.environ).usable) == 1:
        settings = settings.on_only_gpu()
    colocate = bool(settings.launch.colocate)
    return dataclasses.replace(
        settings, launch=dataclasses.replace(settings.launch, colocate=colocate)
    )


def _dated(settings: RunSettings) -> RunSettings:
    """Sets the date that chat templates write: that of the run's first start, or today's."""
    if settings.tokenizer.path is None and settings.model.path is None:
        return settings  # Characters have no template.
    path, date = Workdir(settings.workdir).config, None
    if path.exists():
        date = read_config(path).get("tokenizer", {}).get("date")
    date = date or datetime.date.today().isoformat()
    return dataclasses.replace(
        settings, tokenizer=dataclasses.replace(settings.tokenizer, date=date)
    )


@contextlib.contextmanager
def held(workdir: Workdir) -> Iterator[None]:
    """Creates the directory and locks it; the lock ends with the process.

    Raises:
      ConfigError: another run has locked it, or it cannot be created or written.
    """
    lock = filelock.FileLock(workdir.lock, timeout=0)
    try:
        Path(workdir).mkdir(parents=True, exist_ok=True)
        lock.acquire()
        workdir.lock.write_text(f"{os.getpid()}\n")
    except filelock.Timeout as error:
        holder = workdir.lock.read_text().strip()
        raise ConfigError(
            f"Another run (process {holder or 'unknown'}) holds the work directory {workdir}. Wait"
            " for it or stop it, or give another --config.workdir."
        ) from error
    except OSError as error:
        what = "written" if os.path.isdir(workdir) else "created"
        raise ConfigError(
            f"The work directory {workdir} cannot be {what}: {error.strerror or error}. Give"
            " another --config.workdir, where you may write."
        ) from error
    try:
        yield
    finally:
        lock.release()


def prepare(workdir: Workdir, settings: RunSettings, task: Task) -> Resumption | None:
    """Prepares a locked directory for a new run, or to resume from the newest snapshot.

    It moves the records of an earlier attempt without snapshots to `earlier/`. If a run resumes
    with another config, the old config is copied there.

    Returns:
      The point from which the run resumes; None for a new run.

    Raises:
      ConfigError: the directory holds a run that these settings cannot resume, all of its snapshots
        are damaged, or weights cannot be written to their directory.
    """
    config, path = json.loads(json.dumps(settings.resolved())), workdir.config
    resumption = None
    changes, trained = tuple[Change, ...](), None
    if path.exists():
        changes = tuple(changes_between(read_config(path), config))
        trained = counted_step(workdir, settings, changes)
    if trained is not None or (path.exists() and saved(workdir) != (None, None)):
        sft_step, step, damaged = _whole(workdir)
        if trained is not None:
            sft_step, step = None, trained
        jump = _jump(settings, step, changes)
        resumption = Resumption(sft_step, step, changes, jump, trained is not None)
        _check(workdir, settings, task, resumption)
        if damaged:
            newest_whole(_snapshots(workdir, resumption), aside=True, say=_warn)
        if changes:
            shutil.copy2(path, _earlier(workdir))
    else:
        _set_aside(workdir)
    # Published weights are left over from processes that have ended, and so are buffered groups
    # unless the master that knows them goes on.
    shutil.rmtree(workdir.weights, ignore_errors=True)
    if trained is None:
        shutil.rmtree(workdir.replay, ignore_errors=True)
    if settings.sync.directory is not None:
        _clear_weights(settings.weights_directory(workdir))
    if resumption is not None:
        _record(workdir, resumption)
    _write_config(path, config)
    return resumption


def _write_config(path: Path, config: ConfigValues) -> None:
    """Replaces the config; nothing can go on from the directory without it, so it is flushed."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(json.dumps(config, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    flush_directory(path.parent)


def counted_step(
    workdir: Workdir, settings: RunSettings, changes: Sequence[Change] = ()
) -> int | None:
    """Returns the last step of a run that can go on as if it had not ended; None if it cannot.

    It can if it has made a step, if its journal is whole, if snapshots and logged batches lead to
    that step, and if no changed setting makes other weights of these batches.
    """
    if any(change.is_told and not change.is_one_of(_WITHOUT_INFLUENCE) for change in changes):
        return None
    try:
        counted = counted_steps(workdir.journal)
    except JournalError:
        return None
    if counted is None or not counted.last:
        return None
    schedule = dataclasses.replace(settings.schedule, start=counted.start)
    log = BatchLog(workdir.batches) if settings.explorers else None
    snapshots = snapshot_steps(workdir.snapshots)
    reaches = {step: log.reach(step) if log else counted.last for step in (0, *snapshots)}
    leads = leading_steps(reaches, schedule, counted.last, settings.trainer.steps)
    if not leads or not _has_same_rates(settings, changes, counted.last):
        return None
    return counted.last


def _has_same_rates(settings: RunSettings, changes: Sequence[Change], trained: int) -> bool:
    """Says whether a changed number of steps leaves the learning rates so far as they were."""
    steps = {change.setting: change.before for change in changes}.get("trainer.steps")
    if steps is None:
        return True
    optimizer = settings.optimizer
    then, now = (rl_rate(optimizer, optimizer.updates(n)) for n in (steps, settings.trainer.steps))
    taken = range(trained * optimizer.updates_per_batch)
    return all(float(then(one)) == float(now(one)) for one in taken)


def _whole(workdir: Workdir) -> tuple[int | None, int | None, bool]:
    """Returns steps as `saved` does, of undamaged snapshots, and whether newer ones are damaged."""
    sft_step, step = saved(workdir)
    newest = Resumption(sft_step if step is None else None, step)
    damaged: list[str] = []
    try:
        found = newest_whole(_snapshots(workdir, newest), say=damaged.append)
    except SnapshotError as error:
        raise ConfigError(str(error)) from error
    return (found, None, bool(damaged)) if step is None else (None, found, bool(damaged))


def _snapshots(workdir: Workdir, resumption: Resumption) -> Path:
    """Returns the folder of the snapshots from which a run resumes."""
    return workdir.sft_snapshots if resumption.step is None else workdir.snapshots


def _warn(line: str) -> None:
    print(f"WARNING: {line}")


def _check(workdir: Workdir, settings: RunSettings, task: Task, resumption: Resumption) -> None:
    """Raises ConfigError if the settings cannot resume the run in a directory."""
    steps, step = settings.trainer.steps, resumption.step
    if step is not None and steps < step:
        raise ConfigError(
            f"{workdir} holds a run that has made {step} trainer steps, more than trainer.steps="
            f"{steps}. Give more of them, or another --config.workdir."
        )
    grave = [c for c in resumption.changes if not c.is_free(after_sft=step is not None)]
    if not grave:
        return
    if not settings.launch.resume_changed:
        raise ConfigError(
            f"{workdir} holds a run with another {describe(grave)}. Give another --config.workdir,"
            " the same config, or --config.launch.resume_changed=true to go on with the change."
        )
    at = resumption.sft_step if step is None else step
    assert at is not None
    try:
        check_fit(stored_shapes(_snapshots(workdir, resumption), at), settings, task)
    except ValueError as error:
        raise ConfigError(
            f"{workdir} holds a run with another {describe(grave)}, whose parameters do not fit:"
            f" {error} Give another --config.workdir, or the same config."
        ) from error


def _jump(settings: RunSettings, step: int | None, changes: Sequence[Change]) -> str:
    """Warns if a changed number of steps makes the learning rate of the next step jump."""
    names = "trainer.steps", "optimizer.schedule_steps"
    before = {change.setting: change.before for change in changes if change.setting in names}
    optimizer, steps = settings.optimizer, settings.trainer.steps
    if not step or not before:
        return ""
    horizon = before.get(names[1], optimizer.schedule_steps)
    former = dataclasses.replace(optimizer, schedule_steps=horizon)
    former_steps = before.get(names[0], steps)
    taken = step * optimizer.updates_per_batch
    then = float(rl_rate(former, former.updates(former_steps))(taken))
    now = float(rl_rate(optimizer, optimizer.updates(steps))(taken))
    if math.isclose(then, now, rel_tol=0.05):
        return ""
    return (
        f"the learning rate of trainer step {step + 1} is {now:.2g}, and would have been"
        f" {then:.2g}, since optimizer.schedule={optimizer.schedule} ends after"
        f" {optimizer.schedule_steps or steps} steps now, and ended after"
        f" {horizon or former_steps}. --config.optimizer.schedule_steps={horizon or former_steps}"
        " goes on as before."
    )


def _record(workdir: Workdir, resumption: Resumption) -> None:
    with contextlib.closing(JsonLinesWriter(workdir.resumed)) as lines:
        changes = [change._asdict() for change in resumption.changes]
        where = {"sft": resumption.sft_step, "step": resumption.step}
        lines.write({"time": time.time(), **where, "changes": changes})


def _clear_weights(directory: str) -> None:
    try:
        files = VersionFiles(directory)
        files.mark("launcher", -1)  # Fails where nobody may write.
        files.clear()
    except Exception as error:  # Object stores raise errors of their own.
        raise ConfigError(
            f"Weights cannot be written to {directory} ({type(error).__name__}: {error}). Give"
            " another --config.sync.directory, or make this one writable."
        ) from error


def _earlier(workdir: Workdir) -> Path:
    """Makes a new directory for earlier files."""
    now = time.strftime("%Y%m%d-%H%M%S")
    for suffix in itertools.chain([""], map("-{}".format, itertools.count(2))):
        with contextlib.suppress(FileExistsError):  # Made by another start in the same second.
            target = workdir.earlier / f"{now}{suffix}"
            target.mkdir(parents=True)
            return target
    raise AssertionError("there is always another name")


def _set_aside(workdir: Workdir) -> None:
    found = [path for path in workdir.of_attempt if path.exists()]
    if not found:
        return
    target = _earlier(workdir)
    for path in found:
        path.rename(target / path.name)
