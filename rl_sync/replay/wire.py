"""Items as Reverb's messages: named columns to chunk and trajectory, and back.

We write an item as one chunk with a tensor for each column, in the order of the names. Each tensor
has a leading batch dimension of 1, which the trajectory says to squeeze. Reverb's columns have no
names, so an additional last column holds them: a vector of strings, first a marker, then the names.
Other readers find the item's columns in front of it. Items of other writers may have any number of
slices of any number of chunks.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rl_sync.replay import reverb_pb2, tensors
from rl_sync.replay.compression import varint
from rl_sync.replay.replay_interface import Sample
from rl_sync.replay.tables import TableInfo, TableSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NAMES_MARKER = b"rl_sync.columns"
_CHUNKS_FIELD = reverb_pb2.InsertStreamRequest.CHUNKS_FIELD_NUMBER
_ITEMS_FIELD = reverb_pb2.InsertStreamRequest.ITEMS_FIELD_NUMBER
_DATA_FIELD = reverb_pb2.Chunk.DATA_FIELD_NUMBER
_TRAJECTORY_FIELD = reverb_pb2.Item.FLAT_TRAJECTORY_FIELD_NUMBER
_generator = random.Random()
_MOST_AT_ONCE = 1 << 20
_new_key = _generator.getrandbits
_SOME_KEY = (1 << 64) - 1
os.register_at_fork(after_in_child=_generator.seed)  # Otherwise a child repeats its parent's keys.


class EncodedItem(NamedTuple):
    """A serialized InsertStreamRequest with one item; concatenated, several form one request.

    Attributes:
      key: the key of the item.
      pieces: the pieces of the message, in order.
      size_bytes: the number of bytes of the data, before compression.
    """

    key: int
    pieces: list[Buffer]
    size_bytes: int


def encode_item(table: str, columns: Mapping[str, np.ndarray], priority: float) -> EncodedItem:
    """Encodes an item, and the chunk that holds its data.

    The message is built by hand around the compressed data, since each level of nested messages
    would copy the data once more.

    Raises:
      ValueError: there are no columns, or one cannot be stored.
    """
    if not columns:
        raise ValueError("A replay item needs at least one column.")
    names = sorted(columns)
    encoded = [_encode_column(name, columns[name]) for name in names]
    encoded.append(_encode_names(tuple(names)))
    size_bytes = sum(tensor.size_bytes for tensor in encoded)

    pieces: list[Buffer] = []
    data_bytes = 0
    for tensor in encoded:
        tensor_bytes = len(tensor.head) + tensor.content_bytes
        prefix = tensors.field(reverb_pb2.Chunk.Data.TENSORS_FIELD_NUMBER, tensor_bytes)
        pieces += [prefix, tensor.head, *tensor.content]
        data_bytes += len(prefix) + tensor_bytes
    chunk_key = _new_key(63) | 1 << 63  # As many bytes as those of `_SOME_KEY`.
    chunk = reverb_pb2.Chunk(
        chunk_key=chunk_key,
        sequence_range=reverb_pb2.SequenceRange(episode_id=_new_key(63)),
        data_tensors_len=len(encoded),
        data_uncompressed_size=size_bytes,
    )
    head = chunk.SerializeToString() + tensors.field(_DATA_FIELD, data_bytes)
    item = reverb_pb2.Item(key=_new_key(64), table=table, priority=priority)
    trajectory = _own_trajectory(len(encoded), chunk_key)
    tail = item.SerializeToString() + tensors.field(_TRAJECTORY_FIELD, len(trajectory)) + trajectory
    pieces[:0] = [tensors.field(_CHUNKS_FIELD, len(head) + data_bytes), head]
    pieces += [tensors.field(_ITEMS_FIELD, len(tail)), tail]
    return EncodedItem(item.key, pieces, size_bytes)


@functools.lru_cache(maxsize=64)
def _trajectory(columns: int) -> bytes:
    """Returns the serialized trajectory of an item whose columns are the columns of one chunk.

    The chunk's key is `_SOME_KEY`, whose bytes can be replaced by those of another key.
    """
    trajectory = reverb_pb2.FlatTrajectory()
    for index in range(columns):
        column = trajectory.columns.add(squeeze=True)
        column.chunk_slices.add(chunk_key=_SOME_KEY, length=1, index=index)
    return trajectory.SerializeToString()


def _encode_column(name: str, column: np.ndarray) -> tensors.EncodedTensor:
    try:
        return tensors.encode(np.asarray(column)[np.newaxis])
    except ValueError as error:
        raise ValueError(f"Column {name!r}: {error}") from error


@functools.lru_cache(maxsize=256)
def _encode_names(names: tuple[str, ...]) -> tensors.EncodedTensor:
    return tensors.encode(np.array([[_NAMES_MARKER, *names]], dtype=object))


def read_columns(
    trajectory: reverb_pb2.FlatTrajectory,
    chunks: Iterable[reverb_pb2.Chunk],
    names: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the named columns of an item.

    Args:
      trajectory: the slices of chunks that make up each column.
      chunks: the chunks.
      names: the names for an item without names of its own; None for column_0, column_1, ….

    Raises:
      ValueError: the number of names differs from that of columns, or a chunk is missing or
        malformed.
    """
    chunks = list(chunks)
    if len(chunks) == 1 and (found := _read_own(trajectory, chunks[0])) is not None:
        return found
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


def _read_own(
    trajectory: reverb_pb2.FlatTrajectory, chunk: reverb_pb2.Chunk
) -> dict[str, np.ndarray] | None:
    """Returns the columns of an item that `encode_item` made; None for any other item.

    It checks the whole trajectory at once: checking each column's slices would take longer than
    decompressing a small item.
    """
    tensors_of = chunk.data.tensors
    if not tensors_of or trajectory.SerializeToString() != _own_trajectory(
        len(tensors_of), chunk.chunk_key
    ):
        return None
    *of_columns, last = tensors_of
    shape = tensors.shape_of(last)
    if len(shape) != 2 or (names := _names_of(last.tensor_content, shape[1])) is None:
        return None
    read = [tensors.read(one, delta_encoded=chunk.delta_encoded) for one in of_columns]
    # `[0, ...]`, since `[0]` would turn an array without dimensions into a scalar.
    return {name: array[0, ...] for name, array in zip(names, read, strict=True)}


def _own_trajectory(columns: int, chunk_key: int) -> bytes:
    """Returns the serialized trajectory of an item of ours."""
    return _trajectory(columns).replace(varint(_SOME_KEY), varint(chunk_key))


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
        max_times_sampled=info.max_times_sampled,
        min_size_to_sample=limiter.min_size_to_sample,
        current_size=info.current_size,
        num_inserted=limiter.insert_stats.completed,
        num_sampled=limiter.sample_stats.completed,
    )


def drawable(info: reverb_pb2.TableInfo) -> int:
    """Returns how many items a table can give at once, given its size and its rate limiter."""
    limiter = info.rate_limiter_info
    over_least = info.current_size - max(1, limiter.min_size_to_sample) + 1
    if over_least <= 0:
        return 0
    inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
    allowed = inserts * limiter.samples_per_insert - samples - limiter.min_diff
    # An item may have only one sample left, so each item counts once.
    most = over_least if info.max_times_sampled else _MOST_AT_ONCE
    return int(max(0.0, min(allowed, most)))


def write_info(proto: reverb_pb2.TableInfo, spec: TableSpec, info: TableInfo) -> None:
    """Inverts `read_info`, with the table's full specification."""
    proto.name = spec.name
    proto.max_size = spec.max_size
    proto.max_times_sampled = spec.max_times_sampled
    proto.current_size = info.current_size
    _write_selector(proto.sampler_options, spec.sampler, spec.priority_exponent)
    _write_selector(proto.remover_options, "fifo", spec.priority_exponent)
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
        key = (part.chunk_key, part.index)
        fresh = key not in decoded
        if fresh:
            if part.chunk_key not in chunks:
                raise ValueError(f"A replay item refers to chunk {part.chunk_key}, not sent.")
            chunk = chunks[part.chunk_key]
            decoded[key] = tensors.read(
                chunk.data.tensors[part.index], delta_encoded=chunk.delta_encoded
            )
        array = decoded[key][part.offset : part.offset + part.length]
        parts.append(array if fresh else array.copy())
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # `[0, ...]`, since `[0]` would turn an array without dimensions into a scalar.
    return array[0, ...] if column.squeeze else array


@functools.lru_cache(maxsize=256)
def _names_of(content: bytes, count: int) -> tuple[str, ...] | None:
    strings = tensors.decode_strings(content, count)
    if strings[0] != _NAMES_MARKER:
        return None
    return tuple(string.decode() for string in strings[1:])


def _carried_names(
    column: reverb_pb2.FlatTrajectory.Column, chunks: Mapping[int, reverb_pb2.Chunk]
) -> tuple[str, ...] | None:
    """Returns the names that an item's last column holds; None if it is a column like any other."""
    if len(column.chunk_slices) != 1 or not column.squeeze:
        return None
    part = column.chunk_slices[0]
    chunk = chunks.get(part.chunk_key)
    if chunk is None or part.index >= len(chunk.data.tensors):
        return None
    tensor = chunk.data.tensors[part.index]
    shape = tensors.shape_of(tensor)
    if len(shape) != 2 or shape[0] != 1 or _NAMES_MARKER not in tensor.tensor_content[:4096]:
        return None
    return _names_of(tensor.tensor_content, shape[1])
