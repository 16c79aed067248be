"""Raw snappy compression, on several cores for large data."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import cramjam

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK_BYTES = 1 << 16
_PART_BYTES = 1 << 18
_MAX_THREADS = 4


def compress(data: memoryview) -> list[Buffer]:
    """Compresses bytes to raw snappy, and returns it in pieces to be concatenated.

    Raw snappy is the length of the data, as a varint, followed by elements for the data in blocks
    of 64 KiB. No element refers to an earlier block. So parts that consist of whole blocks can be
    compressed separately, and joined without their lengths. (google/snappy,
    format_description.txt)
    """
    threads = min(_MAX_THREADS, data.nbytes // _PART_BYTES, _cores())
    if threads < 2:
        return [cramjam.snappy.compress_raw(data)]
    blocks = -(-data.nbytes // _BLOCK_BYTES)
    part_bytes = -(-blocks // threads) * _BLOCK_BYTES
    parts = [data[start : start + part_bytes] for start in range(0, data.nbytes, part_bytes)]
    compressed = _pool().map(cramjam.snappy.compress_raw, parts)
    pieces: list[Buffer] = [varint(data.nbytes)]
    for part, piece in zip(parts, compressed, strict=True):
        pieces.append(memoryview(piece)[len(varint(part.nbytes)) :])
    return pieces


def varint(value: int) -> bytes:
    """Encodes an integer ≥ 0 in groups of seven bits, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="replay-compression")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
