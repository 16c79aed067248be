"""Named arrays in files, through Orbax, uncompressed.

On a file system, a complete directory of arrays appears by one rename. In a bucket of an object
store (`gs://…`), its files appear one by one. The processes of one program write and read together,
each its own shards. Other processes of their cluster take no part.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from rl_sync.models.placement import put
from rl_sync.weights.locations import Location, absolute

HeldArray = jax.Array | np.ndarray
NamedArray = HeldArray | jax.ShapeDtypeStruct
"""An array, or its shape, dtype and place."""

TEMPORARY = ".orbax-checkpoint-tmp"
"""Part of a directory's name while it is being written."""


def _no_metrics(*_: object, **__: object) -> list[object]:
    """Replaces TensorStore's counters for Orbax with an empty list.

    Orbax reads them before and after each save and restore, to log a rate that nobody needs.
    TensorStore never frees the results: each read leaks some kilobytes.
    """
    return []


_loading = threading.Lock()


@functools.cache
def load_orbax() -> Any:
    """Imports Orbax at the first call, since many processes never store anything."""
    with _loading:  # A second thread that imports it meanwhile may find it half initialized.
        import orbax.checkpoint
        import tensorstore

    tensorstore.experimental_collect_matching_metrics = _no_metrics
    return orbax.checkpoint


class MismatchError(ValueError):
    """The stored arrays have other names, shapes or dtypes than requested."""


class ArrayStorage:
    """Writes and reads directories of named arrays. One thread may use one object at a time.

    Args:
      name: name that no other storage of this program uses.
      processes: the program's processes, by their indices in the cluster; by default only this
        process.
    """

    def __init__(self, name: str = "arrays", processes: Iterable[int] | None = None) -> None:
        team = set([jax.process_index()] if processes is None else processes)
        ocp = load_orbax()
        together = ocp.options.MultiprocessingOptions(
            primary_host=min(team), active_processes=team, barrier_sync_key_prefix=name
        )
        self._checkpointer = ocp.Checkpointer(
            ocp.PyTreeCheckpointHandler(
                use_compression=False,
                # OCDBT, with few files for many arrays, took 1.7 times as long to write.
                use_ocdbt=False,
                multiprocessing_options=together,
            ),
            multiprocessing_options=together,
        )

    def write(self, directory: Location, arrays: Mapping[str, HeldArray]) -> None:
        """Writes named arrays.

        Args:
          directory: path that does not exist yet.
          arrays: jax or numpy arrays. In a cluster, jax arrays that only this process holds are
            fetched to the host first, since Orbax then accepts only arrays that span several
            processes.

        Raises:
          ValueError: the directory exists already.
        """
        # Orbax rejects arrays without elements; `read` makes them from their shape.
        full = {name: x for name, x in arrays.items() if math.prod(x.shape)}
        if jax.process_count() > 1:
            full = {name: _fetched(x) for name, x in full.items()}
        self._checkpointer.save(absolute(directory), args=load_orbax().args.PyTreeSave(full))

    def read(
        self, directory: Location, abstract: Mapping[str, NamedArray], *, partial: bool = False
    ) -> dict[str, HeldArray]:
        """Reads named arrays.

        Args:
          directory: directory that `write` made.
          abstract: for each written name, the array or `jax.ShapeDtypeStruct` to read into. A numpy
            array gives a numpy array. Any other gives a jax array in its sharding, or, without a
            sharding, uncommitted on the default device.
          partial: whether the directory may hold other arrays too; they are not read.

        Raises:
          MismatchError: the stored names, shapes or dtypes differ; the message names the first
            difference.
          FileNotFoundError: there is no such directory.
        """
        full = {name: x for name, x in abstract.items() if math.prod(x.shape)}
        restore_args = {name: _restore_args(x) for name, x in full.items()}
        path = absolute(directory)
        args = load_orbax().args.PyTreeRestore(
            item=dict.fromkeys(full, 0) if partial else None,
            restore_args=restore_args,
            partial_restore=partial,
        )
        try:
            read = self._checkpointer.restore(path, args=args)
        except Exception:
            self._check_stored(path, full, partial)  # Raises a better message, if it can.
            raise
        _check(path, read, full, partial)
        return {name: _place(read.get(name), x) for name, x in abstract.items()}

    def _check_stored(
        self, directory: Location, abstract: Mapping[str, NamedArray], partial: bool
    ) -> None:
        """Compares the stored arrays with the requested ones, without reading them.

        Do not call it for every read: TensorStore leaks some kilobytes for each array that it
        describes.
        """
        _check(directory, self._described(directory), abstract, partial)

    def shapes(self, directory: Location) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Returns shapes and dtypes of stored arrays by name, except those without elements.

        Raises:
          FileNotFoundError: there is no such directory.
        """
        stored = self._described(absolute(directory))
        return {name: (tuple(x.shape), np.dtype(x.dtype)) for name, x in stored.items()}

    def _described(self, directory: Location) -> dict[str, Any]:
        """Returns what Orbax says of each stored array, by name."""
        stored = self._checkpointer.metadata(directory).item_metadata
        if stored is None:
            raise FileNotFoundError(f"{directory} holds no arrays.")
        return stored.tree

    def close(self) -> None:
        """Frees the resources of Orbax."""
        self._checkpointer.close()


def flatten_named(tree: Any) -> dict[str, Any]:
    """Returns a pytree's leaves by their path, such as `opt_state/0/mu/embed`.

    Raises:
      ValueError: two leaves have the same path as text.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        if name in named:
            raise ValueError(f"Two leaves of the pytree are both called {name!r}; rename one.")
        named[name] = leaf
    return named


def unflatten_named(abstract: Any, named: Mapping[str, Any]) -> Any:
    """Inverts `flatten_named`, for a pytree with the structure of `abstract`."""
    return jax.tree.unflatten(
        jax.tree.structure(abstract), [named[k] for k in flatten_named(abstract)]
    )


def placement(x: NamedArray) -> jax.sharding.Sharding | None:
    """Returns the committed sharding of an array or a `jax.ShapeDtypeStruct`, or None."""
    if isinstance(x, jax.Array) and not x.committed:
        return None
    return getattr(x, "sharding", None)


def _fetched(x: HeldArray) -> HeldArray:
    return jax.device_get(x) if isinstance(x, jax.Array) and x.is_fully_addressable else x


def _restore_args(x: NamedArray) -> Any:
    sharding = placement(x)
    # In a cluster, an array that only this process holds is read to the host, then placed.
    by_host = jax.process_count() > 1 and (sharding is None or sharding.is_fully_addressable)
    ocp = load_orbax()
    if by_host or sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding)


def _place(value: HeldArray | None, abstract: NamedArray) -> HeldArray:
    if value is None:
        value = np.zeros(abstract.shape, abstract.dtype)
    if isinstance(abstract, np.ndarray):
        return np.asarray(value)
    return value if isinstance(value, jax.Array) else put(value, placement(abstract))


def _check(
    directory: Location,
    stored: Mapping[str, Any],
    abstract: Mapping[str, NamedArray],
    partial: bool,
) -> None:
    """Raises the MismatchError of `ArrayStorage.read`."""
    # Orbax returns the placeholder for an array that is not stored.
    names = {name for name, x in stored.items() if hasattr(x, "shape")}
    names = names & set(abstract) if partial else names
    _check_names(directory, names, set(abstract))
    for name, x in abstract.items():
        _check_array(directory, name, stored[name], x)


def _check_names(directory: Location, stored: set[str], expected: set[str]) -> None:
    if stored != expected:
        missing, extra = sorted(expected - stored), sorted(stored - expected)
        raise MismatchError(
            f"{directory} was written for another model or version: "
            + (f"it lacks {missing[:3]}" if missing else f"it also has {extra[:3]}")
            + f" ({len(missing)} missing, {len(extra)} unknown of {len(stored)})."
        )


def _check_array(directory: Location, name: str, stored: Any, expected: NamedArray) -> None:
    if (tuple(stored.shape), stored.dtype) != (expected.shape, expected.dtype):
        raise MismatchError(
            f"{directory} was written for another model or version: {name} is"
            f" {np.dtype(stored.dtype)}{list(stored.shape)} there and"
            f" {np.dtype(expected.dtype)}{list(expected.shape)} here."
        )
