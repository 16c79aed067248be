"""Snapshots: a role's whole state on disk, from which it goes on exactly as if it had not stopped.

    <directory>/snapshot_00000040/arrays/         the arrays
    <directory>/snapshot_00000040/metadata.json   the rest

A snapshot appears by one rename. The processes of one program take and load snapshots together,
each its own shards; others of their cluster take no part.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.models.placement import put
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.storage import ArrayStorage, flatten_named, placement, unflatten_named

_NAME = re.compile(r"snapshot_(\d{8,})")
_TEMPORARY = ".unfinished-"
_DELETED = ".deleted-"
_ARRAYS = "arrays"
_METADATA = "metadata.json"
_STORAGE = "snapshots"


def save_snapshot(
    directory: Path,
    step: int,
    state: Any,
    metadata: dict[str, Any],
    *,
    keep: int = 3,
    processes: Iterable[int] | None = None,
    agree: Agree = alone,
) -> None:
    """Saves a state; one of the same step is replaced. Waits until it is on disk.

    Args:
      directory: where all snapshots of this role are.
      step: the trainer step, or any count that grows.
      state: a pytree of jax arrays (PRNG keys among them), numpy arrays and Python numbers.
      metadata: what else to remember, as JSON knows it.
      keep: how many of the newest snapshots stay.
      processes, agree: the program's, by their indices in the cluster, and how they agree.

    Raises:
      ValueError: `keep` is below 1, or two leaves have the same name.
      TypeError: JSON does not know a value of `metadata`.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one snapshot must stay.")
    directory = Path(directory)
    text = json.dumps(metadata)
    unfinished = directory / f"{_TEMPORARY}{step:08d}"

    def begin() -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        unfinished.mkdir()

    def finish() -> None:
        (unfinished / _METADATA).write_text(text)
        others = [other for other in _steps(directory) if other != step]
        if _path(directory, step).exists():
            _hide(directory, step)
        unfinished.rename(_path(directory, step))
        for old in others[: max(0, len(others) - (keep - 1))]:
            _hide(directory, old)
        _sweep(directory)

    agree("begin a snapshot", begin)
    with contextlib.closing(ArrayStorage(_STORAGE, processes)) as storage:
        storage.write(unfinished / _ARRAYS, flatten_named(jax.tree.map(_plain, state)))
    agree("finish a snapshot", finish)


def load_snapshot(
    directory: Path, step: int | None, like: Any, processes: Iterable[int] | None = None
) -> tuple[int, Any, dict[str, Any]]:
    """Loads a state, bit for bit as it was saved.

    Args:
      directory: where `save_snapshot` put it.
      step: which; None for the latest.
      like: a state of the same structure, shapes and dtypes. Each leaf comes back as the kind that
        it is here: a jax array (or `jax.ShapeDtypeStruct`) in that sharding, a numpy array, a
        Python number.
      processes: the program's, by their indices in the cluster, which all load it.

    Returns:
      The step, the state and the metadata.

    Raises:
      FileNotFoundError: there is no such snapshot.
      ValueError: the snapshot is of another structure than `like`.
    """
    chosen, state = _load(directory, step, like, partial=False, processes=processes)
    return chosen, state, json.loads((_path(Path(directory), chosen) / _METADATA).read_text())


def load_part(directory: Path, step: int | None, like: Any) -> tuple[int, Any]:
    """Loads a part of a state, such as its parameters alone.

    Args:
      directory, step: see `load_snapshot`.
      like: the wanted part in its place in the state: `{"params": …}` for the field `params`. Its
        leaves stand for what `load_snapshot` says.

    Returns:
      The step and the part.

    Raises:
      FileNotFoundError: there is no such snapshot.
      ValueError: the snapshot has no such part.
    """
    return _load(directory, step, like, partial=True)


def _load(
    directory: Path,
    step: int | None,
    like: Any,
    *,
    partial: bool,
    processes: Iterable[int] | None = None,
) -> tuple[int, Any]:
    directory = Path(directory)
    chosen = latest_snapshot(directory) if step is None else step
    if chosen is None or not _path(directory, chosen).exists():
        raise FileNotFoundError(
            f"There is no snapshot{'' if step is None else f' of step {step}'} in {directory}"
            f" (steps there: {_steps(directory)})."
        )
    arrays, plain_like = _path(directory, chosen) / _ARRAYS, jax.tree.map(_plain_like, like)
    with contextlib.closing(ArrayStorage(_STORAGE, processes)) as storage:
        named = storage.read(arrays, flatten_named(plain_like), partial=partial)
    return chosen, jax.tree.map(_restored, like, unflatten_named(plain_like, named))


def latest_snapshot(directory: Path) -> int | None:
    """The step of the newest snapshot; None if there is none."""
    return max(_steps(Path(directory)), default=None)


def _steps(directory: Path) -> list[int]:
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def _path(directory: Path, step: int) -> Path:
    return directory / f"snapshot_{step:08d}"


def _hide(directory: Path, step: int) -> None:
    _path(directory, step).rename(directory / f"{_DELETED}{step:08d}")


def _sweep(directory: Path) -> None:
    """Deletes what is half written, here or by a process that was killed, and what is replaced."""
    for name in os.listdir(directory):
        if name.startswith((_TEMPORARY, _DELETED)):
            shutil.rmtree(directory / name)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """What is stored for a leaf: a PRNG key's data, a number as an array."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _plain_like(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else np.asarray(leaf)


def _key_impl(like: Any) -> Any:
    impls: list[Any] = []
    # Traced, since JAX does not say it of a ShapeDtypeStruct.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]


def _restored(like: Any, value: Any) -> Any:
    if _is_key(like):
        key = jax.random.wrap_key_data(value, impl=_key_impl(like))
        return key if placement(like) is None else put(key, placement(like))
    if isinstance(like, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
        return value
    return type(like)(value.item())
