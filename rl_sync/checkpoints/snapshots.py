"""Snapshots: a role's whole state on disk, from which it resumes as if it had not stopped.

    <directory>/snapshot_00000040/arrays/         the arrays
    <directory>/snapshot_00000040/metadata.json   all other values
    <directory>/snapshot_00000040/files.json      the checksums of both

A snapshot appears by one rename. The processes of one program save and load snapshots together,
each its own shards; other processes of their cluster take no part.

Orbax writes the arrays. Its CheckpointManager would also choose the snapshots to keep, which takes
one line here, but it renames a snapshot as soon as it is written, before it has checksums.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.checkpoints.checksums import damage, seal
from rl_sync.checkpoints.durability import flush, flush_directory
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.isolation.machine_limits import way_out
from rl_sync.models.placement import in_host_memory, move, put
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.copies import copied
from rl_sync.weights.storage import (
    ArrayStorage,
    MismatchError,
    flatten_named,
    placement,
    unflatten_named,
)
from rl_sync.workdir import snapshot_name

_NAME = re.compile(r"snapshot_(\d{8,})")
SAVED_SECS = "saved_secs"
"""Name of the time at which a snapshot was saved, in its metadata; in Unix seconds."""

_TEMPORARY = ".unfinished-"
_DELETED = ".deleted-"
_DAMAGED = "damaged_"
_ARRAYS = "arrays"
_METADATA = "metadata.json"
_STORAGE = "snapshots"
_NONE: Mapping[int, str] = MappingProxyType({})
_log = logging.getLogger(__name__)


Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shapes and dtypes of arrays by their names."""


class SnapshotError(RunEndedError):
    """A snapshot cannot be saved, or is damaged."""


def save_snapshot(
    directory: Path,
    step: int,
    state: Any,
    metadata: dict[str, Any],
    *,
    keep: int = 3,
    kept: Collection[int] = (),
    keep_every_secs: float | None = None,
    processes: Iterable[int] | None = None,
    agree: Agree = alone,
) -> None:
    """Saves a state, and waits until it is on disk. It replaces a snapshot of the same step.

    Args:
      directory: folder of all snapshots of this role.
      step: trainer step, or any count that grows.
      state: a pytree of jax arrays (including PRNG keys), numpy arrays and Python numbers.
      metadata: other values to save, as JSON.
      keep: number of newest snapshots to keep.
      kept: steps whose snapshots are kept as well.
      keep_every_secs: length of the periods of which one snapshot each is kept for good; None for
        none.
      processes, agree: the program's processes, by their indices in the cluster, and the `Agree`
        that they share.

    Raises:
      ValueError: `keep` is below 1, or two leaves have the same name.
      TypeError: JSON cannot express a value of `metadata`.
      SnapshotError: the state cannot be saved; earlier snapshots are kept.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one snapshot must be kept.")
    directory = Path(directory)
    text = json.dumps(metadata)
    named = flatten_named(jax.tree.map(_plain, state))
    unfinished = directory / f"{_TEMPORARY}{step:08d}"

    def begin() -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        unfinished.mkdir()

    def finish() -> None:
        (unfinished / _METADATA).write_text(text)
        seal(unfinished)
        flush(unfinished)
        aged = {} if keep_every_secs is None else _saved_secs(directory)
        stay = {step, *kept, *one_a_period(aged, keep_every_secs or 0.0)}
        others = [other for other in snapshot_steps(directory) if other not in stay]
        if snapshot_path(directory, step).exists():
            _hide(directory, step)
        unfinished.rename(snapshot_path(directory, step))
        flush_directory(directory)
        for old in others[: max(0, len(others) - (keep - 1))]:
            _hide(directory, old)
        _sweep(directory)

    try:
        agree("begin a snapshot", begin)
        with contextlib.closing(ArrayStorage(_STORAGE, processes)) as storage:
            storage.write(unfinished / _ARRAYS, named)
        agree("finish a snapshot", finish)
    except Exception as error:  # Errors of the disk, or of Orbax, which has many.
        shutil.rmtree(unfinished, ignore_errors=True)  # A full disk needs the space.
        cause = str(error).partition("\n")[0]
        way = way_out(error) if isinstance(error, OSError) else None
        remedy = f" {way.capitalize()}, and run it again." if way else ""
        raise SnapshotError(
            f"The snapshot of step {step} cannot be saved in {directory}"
            f" ({type(error).__name__}: {cause}). The earlier ones stay: steps"
            f" {snapshot_steps(directory)}.{remedy}"
        ) from error


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


def on_host(state: Any) -> Any:
    """Returns a copy of a state in this process's memory, which `save_snapshot` saves alike.

    The state may be donated to a computation afterwards. All of its arrays must be addressable.
    """
    return jax.tree.map(lambda leaf: np.array(_plain(leaf), copy=True), state)


def set_aside(state: Any) -> Any:
    """Returns a copy of a state that several processes hold, which `save_snapshot` saves alike.

    The state may be donated to a computation afterwards. The copy is in the memory of the hosts; of
    CPU devices these are the same.
    """
    plain = jax.tree.map(_plain, state)
    if jax.default_backend() == "cpu":
        return copied(plain)
    return jax.tree.map(_to_host, plain)


def load_snapshot(
    directory: Path,
    step: int | None,
    abstract: Any,
    processes: Iterable[int] | None = None,
    agree: Agree = alone,
    *,
    aside: bool = False,
) -> tuple[int, Any, dict[str, Any]]:
    """Loads a state, equal to the saved one to the bit.

    Args:
      directory: the folder given to `save_snapshot`.
      step: step of the snapshot; None for the newest undamaged one.
      abstract: a state of the same structure, shapes and dtypes. Each leaf is returned as the kind
        that it has here: a jax array (or `jax.ShapeDtypeStruct`) in that sharding, a numpy array,
        or a Python number.
      processes, agree: see `save_snapshot`; all these processes load the state.
      aside: see `newest_whole`.

    Returns:
      The step, the state and the metadata.

    Raises:
      FileNotFoundError: there is no such snapshot.
      SnapshotError: the snapshot is damaged, or all snapshots are.
      MismatchError: the snapshot has another structure than `abstract`.
    """
    with contextlib.closing(ArrayStorage(_STORAGE, processes)) as storage:
        return _load(storage, Path(directory), step, abstract, agree, partial=False, aside=aside)


def read_metadata(directory: Path, step: int) -> dict[str, Any]:
    """Reads the metadata that was given to `save_snapshot`."""
    return json.loads((snapshot_path(Path(directory), step) / _METADATA).read_text())


def load_part(directory: Path, step: int | None, abstract: Any) -> tuple[int, Any, dict[str, Any]]:
    """Loads a part of a state, such as its parameters alone.

    Args:
      directory, step: see `load_snapshot`.
      abstract: the requested part at its place in the state: `{"params": …}` for the field
        `params`. Its leaves are as in `load_snapshot`.

    Returns:
      The step, the part and the metadata.

    Raises:
      FileNotFoundError, SnapshotError: see `load_snapshot`.
      MismatchError: the snapshot has no such part.
    """
    with contextlib.closing(ArrayStorage(_STORAGE)) as storage:
        return _load(storage, Path(directory), step, abstract, alone, partial=True, aside=False)


def _load(
    storage: ArrayStorage,
    directory: Path,
    step: int | None,
    abstract: Any,
    agree: Agree,
    *,
    partial: bool,
    aside: bool,
) -> tuple[int, Any, dict[str, Any]]:
    plain_like = jax.tree.map(_plain_like, abstract)
    unreadable: dict[int, str] = {}
    while True:
        chosen, metadata = agree(
            "choose a snapshot", lambda: _chosen(directory, step, unreadable, aside=aside)
        )
        arrays = snapshot_path(directory, chosen) / _ARRAYS
        try:
            named = storage.read(arrays, flatten_named(plain_like), partial=partial)
        except MismatchError:
            raise
        except Exception as error:  # Orbax raises many kinds.
            cause = str(error).partition("\n")[0]
            unreadable[chosen] = f"it cannot be read ({type(error).__name__}: {cause})"
        else:
            state = jax.tree.map(_restored, abstract, unflatten_named(plain_like, named))
            return chosen, state, metadata


def _chosen(
    directory: Path, step: int | None, unreadable: Mapping[int, str], *, aside: bool
) -> tuple[int, dict[str, Any]]:
    """Returns the step of the undamaged snapshot to load, and its metadata."""
    chosen = newest_whole(directory, unreadable, aside=aside) if step is None else step
    if chosen is None or not snapshot_path(directory, chosen).exists():
        raise FileNotFoundError(
            f"There is no snapshot{'' if step is None else f' of step {step}'} in {directory}"
            f" (steps there: {snapshot_steps(directory)})."
        )
    reason = unreadable.get(chosen) or (
        None if step is None else damage(snapshot_path(directory, chosen))
    )
    if reason is not None:
        raise SnapshotError(f"{snapshot_path(directory, chosen)} is damaged: {reason}.")
    return chosen, read_metadata(directory, chosen)


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
                _leave_out(directory, broken, why, step, aside=aside, say=say)
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


def _leave_out(
    directory: Path,
    step: int,
    reason: str,
    instead: int,
    *,
    aside: bool,
    say: Callable[[str], None],
) -> None:
    path, renamed = snapshot_path(directory, step), ""
    if aside:
        names = (f"{_DAMAGED}{step:08d}{suffix}" for suffix in ("", *map("-{}".format, range(99))))
        target = next(directory / name for name in names if not (directory / name).exists())
        path.rename(target)
        renamed = f" It is now called {target.name}."
    say(
        f"The snapshot {path} is damaged: {reason}. The snapshot of step {instead} is used"
        f" instead.{renamed}"
    )


def stored_shapes(directory: Path, step: int) -> Shapes:
    """Reads the shapes and dtypes of a snapshot's arrays, by their paths in the state."""
    with contextlib.closing(ArrayStorage(_STORAGE)) as storage:
        return storage.shapes(snapshot_path(Path(directory), step) / _ARRAYS)


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


def _hide(directory: Path, step: int) -> None:
    snapshot_path(directory, step).rename(directory / f"{_DELETED}{step:08d}")


def _sweep(directory: Path) -> None:
    """Deletes unfinished snapshots, even those of killed processes, and replaced ones."""
    for name in os.listdir(directory):
        if name.startswith((_TEMPORARY, _DELETED)):
            shutil.rmtree(directory / name)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """Converts a leaf to its stored form: a PRNG key to its data, a number to an array."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _to_host(leaf: Any) -> Any:
    """Copies an array to the hosts that have its shards; a number stays on its devices."""
    if not isinstance(leaf, jax.Array):
        return np.array(leaf, copy=True)
    abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return move(leaf, in_host_memory(abstract))


def _plain_like(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else np.asarray(leaf)


def _key_impl(abstract: Any) -> Any:
    impls: list[Any] = []
    # The key is traced to find its implementation, which a ShapeDtypeStruct does not give.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), abstract)
    return impls[0]


def _restored(abstract: Any, value: Any) -> Any:
    if _is_key(abstract):
        key = jax.random.wrap_key_data(value, impl=_key_impl(abstract))
        return key if placement(abstract) is None else put(key, placement(abstract))
    if isinstance(abstract, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
        return value
    return type(abstract)(value.item())
