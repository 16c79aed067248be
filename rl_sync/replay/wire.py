"""Items as Reverb's messages: named columns to chunk and trajectory, and back.

We write an item as one chunk with a tensor a column, in the order of the names, each with a
leading batch dimension of 1 that the trajectory says to squeeze. Reverb's columns have no names,
so a last column holds them: a string vector of a marker and the names. Any reader finds the item's
columns in front of it. Items of other writers have as many slices of as many chunks as they like.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rl_sync.replay import reverb_pb2, tensors
from rl_sync.replay.interface import Sample
from rl_sync.replay.tables import TableInfo, TableSpec

_NAMES_MARKER = b"rl_sync.columns"
_new_key = random.SystemRandom().getrandbits


def add_item(
    request: reverb_pb2.InsertStreamRequest,
    table: str,
    columns: Mapping[str, np.ndarray],
    priority: float,
) -> tuple[int, int]:
    """Adds an item, and the chunk that holds its data, to a request.

    Returns:
      The key of the item, and the size of its data in bytes before compression.

    Raises:
      ValueError: no columns, or one that cannot be stored.
    """
    if not columns:
        raise ValueError("A replay item needs at least one column.")
    names = sorted(columns)
    chunk = request.chunks.add(chunk_key=_new_key(64), data_tensors_len=len(names) + 1)
    chunk.sequence_range.episode_id = _new_key(63)
    item = request.items.add(key=_new_key(64), table=table, priority=priority)
    size_bytes = 0
    try:
        for name in names:
            array = np.asarray(columns[name])
            size_bytes += tensors.write(chunk.data.tensors.add(), array[np.newaxis])
    except ValueError as error:
        raise ValueError(f"Column {name!r}: {error}") from error
    chunk.data.tensors.append(_names_tensor(tuple(names)))
    chunk.data_uncompressed_size = size_bytes
    for index in range(len(names) + 1):
        column = item.flat_trajectory.columns.add(squeeze=True)
        column.chunk_slices.add(chunk_key=chunk.chunk_key, length=1, index=index)
    return item.key, size_bytes


def read_columns(
    trajectory: reverb_pb2.FlatTrajectory,
    chunks: Iterable[reverb_pb2.Chunk],
    names: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the named columns of an item.

    Args:
      trajectory: which slices of which chunks make up each column.
      chunks: the chunks.
      names: for an item that does not carry names of its own; None for column_0, column_1, ….

    Raises:
      ValueError: another count of names than columns, or a chunk is missing or malformed.
    """
    by_key = {chunk.chunk_key: chunk for chunk in chunks}
    columns = list(trajectory.columns)
    carried = _carried_names(columns[-1], by_key) if columns else None
    if carried is not None:
        columns.pop()
        names = carried
    elif names is None:
        names = [f"column_{i}" for i in range(len(columns))]
    if len(names) != len(columns):
        raise ValueError(
            f"A replay item has {len(columns)} columns, but {len(names)} names were given for"
            f" them: {', '.join(names)}."
        )
    decoded: dict[tuple[int, int], np.ndarray] = {}
    return {
        name: _read_column(column, by_key, decoded)
        for name, column in zip(names, columns, strict=True)
    }


def read_sample(
    info: reverb_pb2.SampleInfo,
    chunks: Iterable[reverb_pb2.Chunk],
    names: Sequence[str] | None = None,
) -> Sample:
    """Returns the sample that a server describes; see `read_columns`."""
    return Sample(
        key=info.item.key,
        priority=info.item.priority,
        times_sampled=info.item.times_sampled,
        probability=info.probability,
        table_size=info.table_size,
        columns=read_columns(info.item.flat_trajectory, chunks, names),
    )


def read_info(info: reverb_pb2.TableInfo) -> TableInfo:
    """Returns the state of a table that a server describes."""
    limiter = info.rate_limiter_info
    return TableInfo(
        name=info.name,
        max_size=info.max_size,
        sampler=_read_selector(info.sampler_options),
        remover=_read_selector(info.remover_options),
        max_times_sampled=info.max_times_sampled,
        min_size_to_sample=limiter.min_size_to_sample,
        current_size=info.current_size,
        num_inserted=limiter.insert_stats.completed,
        num_sampled=limiter.sample_stats.completed,
    )


def write_info(proto: reverb_pb2.TableInfo, spec: TableSpec, info: TableInfo) -> None:
    """Inverts `read_info`, with the table's full specification."""
    proto.name = spec.name
    proto.max_size = spec.max_size
    proto.max_times_sampled = spec.max_times_sampled
    proto.current_size = info.current_size
    _write_selector(proto.sampler_options, spec.sampler, spec.priority_exponent)
    _write_selector(proto.remover_options, spec.remover, spec.priority_exponent)
    limiter = proto.rate_limiter_info
    limiter.samples_per_insert = spec.samples_per_insert
    limiter.min_size_to_sample = spec.min_size_to_sample
    limiter.min_diff, limiter.max_diff = spec.min_diff, spec.max_diff
    limiter.insert_stats.completed = info.num_inserted
    limiter.sample_stats.completed = info.num_sampled


def _write_selector(proto: reverb_pb2.Selector, kind: str, exponent: float) -> None:
    if kind == "prioritized":
        proto.prioritized.priority_exponent = exponent
    elif kind in ("min_heap", "max_heap"):
        proto.heap.min_heap = kind == "min_heap"
    else:
        setattr(proto, kind, True)


def _read_selector(selector: reverb_pb2.Selector) -> str:
    if selector.HasField("heap"):
        return "min_heap" if selector.heap.min_heap else "max_heap"
    return selector.WhichOneof("distribution") or "unknown"


def _read_column(
    column: reverb_pb2.FlatTrajectory.Column,
    chunks: Mapping[int, reverb_pb2.Chunk],
    decoded: dict[tuple[int, int], np.ndarray],
) -> np.ndarray:
    parts = []
    for part in column.chunk_slices:
        place = (part.chunk_key, part.index)
        fresh = place not in decoded
        if fresh:
            if part.chunk_key not in chunks:
                raise ValueError(f"A replay item refers to chunk {part.chunk_key}, not sent.")
            chunk = chunks[part.chunk_key]
            decoded[place] = tensors.read(
                chunk.data.tensors[part.index], delta_encoded=chunk.delta_encoded
            )
        array = decoded[place][part.offset : part.offset + part.length]
        parts.append(array if fresh else array.copy())
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # `[0, ...]` where `[0]` would turn an array without dimensions into a scalar.
    return array[0, ...] if column.squeeze else array


@functools.lru_cache(maxsize=256)
def _names_tensor(names: tuple[str, ...]) -> reverb_pb2.Tensor:
    tensor = reverb_pb2.Tensor()
    tensors.write(tensor, np.array([[_NAMES_MARKER, *names]], dtype=object))
    return tensor


@functools.lru_cache(maxsize=256)
def _names_of(content: bytes, count: int) -> tuple[str, ...] | None:
    strings = tensors.decode_strings(content, count)
    if strings[0] != _NAMES_MARKER:
        return None
    return tuple(string.decode() for string in strings[1:])


def _carried_names(
    column: reverb_pb2.FlatTrajectory.Column, chunks: Mapping[int, reverb_pb2.Chunk]
) -> tuple[str, ...] | None:
    """Returns the names that a last column holds, or None if it is a column like any other."""
    if len(column.chunk_slices) != 1 or not column.squeeze:
        return None
    part = column.chunk_slices[0]
    chunk = chunks.get(part.chunk_key)
    if chunk is None or part.index >= len(chunk.data.tensors):
        return None
    tensor = chunk.data.tensors[part.index]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if len(shape) != 2 or shape[0] != 1 or _NAMES_MARKER not in tensor.tensor_content[:4096]:
        return None
    return _names_of(tensor.tensor_content, shape[1])
