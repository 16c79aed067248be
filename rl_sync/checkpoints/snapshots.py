"""Snapshots: a role's whole state on disk, from which it resumes as if it had not stopped.

This module makes, finds, checks and deletes their folders; `snapshot_folder` has their arrays.

    <directory>/snapshot_00000040/arrays/         the arrays
    <directory>/snapshot_00000040/metadata.json   all other values
    <directory>/snapshot_00000040/files.json      the checksums of both

A snapshot appears by one rename. Orbax writes the arrays. Its CheckpointManager would also choose
the snapshots to keep, which takes one line here, but it renames a snapshot as soon as it is
written, before it has checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rl_sync.checkpoints.checksums import damage, seal
from rl_sync.checkpoints.durability import flush, flush_directory
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.records.json_lines import JsonObject
from rl_sync.workdir import snapshot_name

_NAME = re.compile(r"snapshot_(\d{8,})")
SAVED_SECS = "saved_secs"
"""Name of the time at which a snapshot was saved, in its metadata; in Unix seconds."""

_TEMPORARY = ".unfinished-"
_DELETED = ".deleted-"
_DAMAGED = "damaged_"
ARRAYS = "arrays"
_METADATA = "metadata.json"
_NONE: Mapping[int, str] = MappingProxyType({})
_NONE_SAVED: Mapping[int, float] = MappingProxyType({})
_log = logging.getLogger(__name__)


class SnapshotError(RunEndedError):
    """A snapshot cannot be saved, or is damaged."""


@dataclasses.dataclass(frozen=True)
class Retention:
    """Chooses the snapshots that stay once another one is saved.

    Attributes:
      keep: number of newest snapshots to keep.
      steps: steps whose snapshots are kept as well.
      every_secs: length of the periods of which one snapshot each is kept for good; None for none.

    Raises:
      ValueError: `keep` is below 1.
    """

    keep: int = 3
    steps: Collection[int] = ()
    every_secs: float | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep={self.keep}: at least one snapshot must be kept.")

    def superfluous(
        self, saved: int, steps: Sequence[int], saved_secs: Mapping[int, float] = _NONE_SAVED
    ) -> list[int]:
        """Returns the steps of the snapshots that are deleted.

        Args:
          saved: step of the snapshot that is saved now.
          steps: steps of all snapshots, in order.
          saved_secs: the times of all snapshots by their steps; needed only with `every_secs`.
        """
        stay = {saved, *self.steps}
        if self.every_secs is not None:
            stay |= {*one_a_period(saved_secs, self.every_secs)}
        others = [step for step in steps if step not in stay]
        return others[: max(0, len(others) - (self.keep - 1))]


def begin_snapshot(directory: Path, step: int) -> None:
    """Makes the folder in which the snapshot of a step is written; see `unfinished_path`."""
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    unfinished_path(directory, step).mkdir()


def finish_snapshot(directory: Path, step: int, metadata: str, retention: Retention) -> None:
    """Writes the metadata, as JSON, gives the snapshot its name, and deletes superfluous ones."""
    unfinished = unfinished_path(directory, step)
    (unfinished / _METADATA).write_text(metadata)
    seal(unfinished)
    flush(unfinished)
    saved_secs = {} if retention.every_secs is None else _saved_secs(directory)
    superfluous = retention.superfluous(step, snapshot_steps(directory), saved_secs)
    if snapshot_path(directory, step).exists():
        _hide(directory, step)
    unfinished.rename(snapshot_path(directory, step))
    flush_directory(directory)
    for old in superfluous:
        _hide(directory, old)
    _sweep(directory)


def one_a_period(saved_secs: Mapping[int, float], period_secs: float) -> list[int]:
    """Chooses the snapshots that are kept for their age: the first, and later ones a period apart.

    Those that are chosen once are chosen again after others are deleted, or newer ones are saved.

    Args:
      saved_secs: the time of each snapshot, by its step.
      period_secs: shortest time between two of them.
    """
    chosen: list[int] = []
    for step in sorted(saved_secs):
        if not chosen or saved_secs[step] - saved_secs[chosen[-1]] >= period_secs:
            chosen.append(step)
    return chosen


def _saved_secs(directory: Path) -> dict[int, float]:
    """Returns the time at which each snapshot was saved, in Unix seconds.

    Older snapshots have no time of their own; the time of their file may be that of a copy.
    """
    found = {}
    for step in snapshot_steps(directory):
        with contextlib.suppress(OSError, ValueError):  # A damaged one has no age.
            metadata = read_metadata(directory, step)
            file = snapshot_path(directory, step) / _METADATA
            found[step] = float(metadata.get(SAVED_SECS) or file.stat().st_mtime)
    return found


def read_metadata(directory: Path, step: int) -> JsonObject:
    """Reads the metadata that was given to `SnapshotFolder.save`."""
    return json.loads((snapshot_path(Path(directory), step) / _METADATA).read_text())


def newest_whole(
    directory: Path,
    unreadable: Mapping[int, str] = _NONE,
    *,
    aside: bool = False,
    say: Callable[[str], None] = _log.warning,
) -> int | None:
    """Returns the step of the newest undamaged snapshot; None if there are no snapshots.

    Args:
      unreadable: steps of snapshots to leave out, each with the reason.
      aside: whether the newer snapshots, all of them damaged, are renamed, so that they are ignored
        from then on.
      say: function that gets one line about each damaged snapshot.

    Raises:
      SnapshotError: all snapshots are damaged; they are not renamed.
    """
    directory = Path(directory)
    damaged: dict[int, str] = {}
    for step in reversed(snapshot_steps(directory)):
        reason = unreadable.get(step) or damage(snapshot_path(directory, step))
        if reason is None:
            for broken, why in damaged.items():
                path = snapshot_path(directory, broken)
                renamed = f" It is now called {_set_aside(path, broken)}." if aside else ""
                say(
                    f"The snapshot {path} is damaged: {why}. The snapshot of step {step} is used"
                    f" instead.{renamed}"
                )
            return step
        damaged[step] = reason
    if damaged:
        reasons = "; ".join(
            f"{snapshot_path(directory, s).name}: {why}" for s, why in damaged.items()
        )
        raise SnapshotError(
            f"No snapshot in {directory} is whole ({reasons}). Put a copy of one there, or give"
            " another --config.workdir to start again."
        )
    return None


def _set_aside(path: Path, step: int) -> str:
    """Renames a damaged snapshot, so that it is ignored from then on; returns its new name."""
    names = (f"{_DAMAGED}{step:08d}{suffix}" for suffix in ("", *map("-{}".format, range(99))))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    path.rename(target)
    return target.name


def latest_snapshot(directory: Path) -> int | None:
    """Returns the step of the newest snapshot, damaged or not; None if there is none."""
    return max(snapshot_steps(directory), default=None)


def snapshot_steps(directory: Path) -> list[int]:
    """Returns the steps of all snapshots, damaged or not, in order."""
    directory = Path(directory)
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def snapshot_path(directory: Path, step: int) -> Path:
    """Returns the directory of a step's snapshot, whether or not it exists."""
    return directory / snapshot_name(step)


def unfinished_path(directory: Path, step: int) -> Path:
    """Returns the folder in which the snapshot of a step is written."""
    return directory / f"{_TEMPORARY}{step:08d}"


def _hide(directory: Path, step: int) -> None:
    snapshot_path(directory, step).rename(directory / f"{_DELETED}{step:08d}")


def _sweep(directory: Path) -> None:
    """Deletes unfinished snapshots, even those of killed processes, and replaced ones."""
    for name in os.listdir(directory):
        if name.startswith((_TEMPORARY, _DELETED)):
            shutil.rmtree(directory / name)
