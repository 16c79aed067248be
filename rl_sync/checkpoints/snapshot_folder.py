"""The snapshots in one folder: states that the processes of a program save and load together.

Each process reads and writes its own shards; other processes of their cluster take no part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.checkpoints.checksums import damage
from rl_sync.checkpoints.snapshots import (
    ARRAYS,
    Retention,
    SnapshotError,
    begin_snapshot,
    finish_snapshot,
    latest_snapshot,
    newest_whole,
    read_metadata,
    snapshot_path,
    snapshot_steps,
    unfinished_path,
)
from rl_sync.isolation.machine_limits import way_out
from rl_sync.learning.train_state import TrainState
from rl_sync.models.placement import in_host_memory, move, put
from rl_sync.records.json_lines import JsonObject
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.copies import copied
from rl_sync.weights.storage import (
    ArrayStorage,
    MismatchError,
    flatten_named,
    placement,
    unflatten_named,
)

State = TypeVar("State")
"""A pytree of jax arrays (including PRNG keys), numpy arrays and Python numbers."""

Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct | float
"""A leaf of a state; abstract ones are `jax.ShapeDtypeStruct`."""

Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shapes and dtypes of arrays by their names."""

_STORAGE = "snapshots"
_RETENTION = Retention()
_NEEDED = ("step", "params")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SnapshotFolder:
    """Snapshots in a folder.

    Attributes:
      directory: the folder; it need not exist.
      processes: the program's processes, by their indices in their cluster; None for this one.
      agree: the `Agree` that these processes share.
    """

    directory: Path
    processes: Sequence[int] | None = None
    agree: Agree = alone

    def steps(self) -> list[int]:
        """Returns the steps of the snapshots, in order."""
        return snapshot_steps(self.directory)

    def newest(self) -> int | None:
        """Returns the step of the newest snapshot, None if there is none."""
        return latest_snapshot(self.directory)

    def copied(self, state: State) -> State:
        """Returns a copy of a state, which outlives its donation to the next step."""
        return set_aside(state) if len(self.processes or ()) > 1 else on_host(state)

    def save(
        self,
        step: int,
        state: State,
        metadata: JsonObject,
        retention: Retention = _RETENTION,
    ) -> None:
        """Saves a state, and waits until it is on disk. It replaces a snapshot of the same step.

        Args:
          step: trainer step, or any count that grows.
          metadata: other values to save, as JSON.
          retention: chooses the snapshots that stay.

        Raises:
          ValueError: two leaves have the same name.
          TypeError: JSON cannot express a value of `metadata`.
          SnapshotError: the state cannot be saved; earlier snapshots are kept.
        """
        directory, text = self.directory, json.dumps(metadata)
        named = flatten_named(jax.tree.map(_plain, state))
        unfinished = unfinished_path(directory, step)
        try:
            self.agree("begin a snapshot", lambda: begin_snapshot(directory, step))
            with contextlib.closing(ArrayStorage(_STORAGE, self.processes)) as storage:
                storage.write(unfinished / ARRAYS, named)
            self.agree(
                "finish a snapshot", lambda: finish_snapshot(directory, step, text, retention)
            )
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

    def load(self, step: int | None, abstract: State) -> tuple[int, State, JsonObject]:
        """Loads a state, equal to the saved one to the bit.

        Args:
          step: step of the snapshot; None for the newest undamaged one. Damaged ones that are newer
            are then renamed, so that they are ignored from then on.
          abstract: a state of the same structure, shapes and dtypes. Each leaf is returned as the
            kind that it has here: a jax array (or `jax.ShapeDtypeStruct`) in that sharding, a numpy
            array, or a Python number.

        Returns:
          The step, the state and the metadata.

        Raises:
          FileNotFoundError: there is no such snapshot.
          SnapshotError: the snapshot is damaged, or all snapshots are.
          MismatchError: the snapshot has another structure than `abstract`.
        """
        return self._load(step, abstract, partial=False)

    def load_adapted(
        self, abstract: TrainState, begin: Callable[[Params, JsonObject], TrainState]
    ) -> tuple[TrainState, JsonObject, list[str]]:
        """Loads the newest snapshot after changes of settings: fields that fit are kept.

        Args:
          abstract: the abstract state that the new settings need.
          begin: makes the state at the start of RL from a snapshot's parameters and metadata.

        Returns:
          The state, the snapshot's metadata, and the names of the fields that start anew.

        Raises:
          MismatchError: the parameters do not fit.
        """
        step = self.agree("newest whole", lambda: newest_whole(self.directory))
        assert step is not None
        metadata = read_metadata(self.directory, step)

        def field(name: str) -> Params:
            return load_part(self.directory, step, {name: getattr(abstract, name)})[1][name]

        found = {name: field(name) for name in _NEEDED}
        state, anew = begin(found["params"], metadata)._replace(step=found["step"]), []
        for name in TrainState._fields:
            if name in _NEEDED or getattr(abstract, name) is None:
                continue
            try:
                state = state._replace(**{name: field(name)})
            except MismatchError as error:
                _log.warning("%s starts anew: %s", name, error)
                anew.append(name)
        return state, metadata, anew

    def clear(self) -> None:
        """Deletes all snapshots."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _load(
        self, step: int | None, abstract: State, *, partial: bool
    ) -> tuple[int, State, JsonObject]:
        plain_like = jax.tree.map(_plain_like, abstract)
        unreadable: dict[int, str] = {}
        with contextlib.closing(ArrayStorage(_STORAGE, self.processes)) as storage:
            while True:
                chosen, metadata = self.agree(
                    "choose a snapshot", lambda: self._chosen(step, unreadable, aside=not partial)
                )
                arrays = snapshot_path(self.directory, chosen) / ARRAYS
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
        self, step: int | None, unreadable: Mapping[int, str], *, aside: bool
    ) -> tuple[int, JsonObject]:
        """Returns the step of the undamaged snapshot to load, and its metadata."""
        directory = self.directory
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


def load_part(directory: Path, step: int | None, abstract: State) -> tuple[int, State, JsonObject]:
    """Loads a part of a state, such as its parameters alone, in a program of one process.

    Args:
      directory: folder of the snapshots, in which nothing is renamed.
      step: see `SnapshotFolder.load`.
      abstract: the requested part at its place in the state: `{"params": …}` for the field
        `params`. Its leaves are as in `SnapshotFolder.load`.

    Returns:
      The step, the part and the metadata.

    Raises:
      FileNotFoundError, SnapshotError: see `SnapshotFolder.load`.
      MismatchError: the snapshot has no such part.
    """
    return SnapshotFolder(directory)._load(step, abstract, partial=True)


def stored_shapes(directory: Path, step: int) -> Shapes:
    """Reads the shapes and dtypes of a snapshot's arrays, by their paths in the state."""
    with contextlib.closing(ArrayStorage(_STORAGE)) as storage:
        return storage.shapes(snapshot_path(directory, step) / ARRAYS)


def on_host(state: State) -> State:
    """Returns a copy of a state in this process's memory, which is saved alike.

    The state may be donated to a computation afterwards. All of its arrays must be addressable.
    """
    return jax.tree.map(lambda leaf: np.array(_plain(leaf), copy=True), state)


def set_aside(state: State) -> State:
    """Returns a copy of a state that several processes hold, which is saved alike.

    The state may be donated to a computation afterwards. The copy is in the memory of the hosts; of
    CPU devices these are the same.
    """
    plain = jax.tree.map(_plain, state)
    if jax.default_backend() == "cpu":
        return copied(plain)
    return jax.tree.map(_to_host, plain)


def _is_key(leaf: Leaf) -> TypeGuard[jax.Array]:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Leaf) -> jax.Array | np.ndarray:
    """Converts a leaf to its stored form: a PRNG key to its data, a number to an array."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _to_host(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Copies an array to the hosts that have its shards; a number stays on its devices."""
    if not isinstance(leaf, jax.Array):
        return np.array(leaf, copy=True)
    abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return move(leaf, in_host_memory(abstract))


def _plain_like(leaf: Leaf) -> jax.Array | jax.ShapeDtypeStruct | np.ndarray:
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else np.asarray(leaf)


def _key_impl(abstract: Leaf) -> Hashable:
    impls: list[Hashable] = []
    # The key is traced to find its implementation, which a ShapeDtypeStruct does not give.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), abstract)
    return impls[0]


def _restored(abstract: Leaf, value: jax.Array | np.ndarray) -> Leaf:
    if _is_key(abstract):
        key = jax.random.wrap_key_data(cast(jax.Array, value), impl=_key_impl(abstract))
        return key if placement(abstract) is None else put(key, placement(abstract))
    if isinstance(abstract, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
        return value
    return type(abstract)(value.item())
