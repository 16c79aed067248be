"""Lossless encoding of a block of weights, by itself or as its difference to an older one.

A block is a run of elements of one array, as little-endian bytes. There are four encodings:

    SAME    no bytes: the block equals its base.
    RAW     the block's bytes.
    SPARSE  zstd of three runs: gaps, positions' count first, and the xor of the changed elements.
            A gap is the number of unchanged elements before a changed one: as many bytes of 255 as
            it has 255s, then the rest. The xors follow as byte planes: all first bytes, then all
            second bytes, and so on.
    PLANES  zstd of the xor of all elements, as byte planes.

The count of changed elements comes first, as eight bytes. SPARSE and PLANES are only right on their
base: whoever decodes them must know that the base is the right one, and decode them once.

Most values of a bfloat16 policy stay the same in a step: at a learning rate of 1e-6 about two of a
hundred change, and most of those by one unit in the last place.
"""

from __future__ import annotations

import enum
import itertools
import struct
from typing import NamedTuple

import cramjam
import numpy as np
from jaxtyping import Int, Shaped, UInt8, UInt32

Bytes = UInt8[np.ndarray, " bytes"]
Positions = Int[np.ndarray, " changed"]

BLOCK_BYTES = 512 << 10
"""Size of a block; the last block of an array is shorter."""

_ALIGNMENT = 64
_LEVEL = 1
_ESCAPE = 255
_MOST_SPARSE = 0.3
"""Share of changed elements above which byte planes are smaller than positions."""
_WRAPPED = 2**32 - 1
"""The position before the first one, as an unsigned 32-bit integer."""
_COUNT = struct.Struct("<q")
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Encoding(enum.IntEnum):
    """Kind of encoding; see the module."""

    SAME = 0
    RAW = 1
    SPARSE = 2
    PLANES = 3


class EncodingError(ValueError):
    """The bytes of a block cannot be decoded: they are damaged, or belong to another block."""


class ChangedElements(NamedTuple):
    """Elements of an array that differ from its base, as whoever compared them tells.

    Attributes:
      mask: a bit for each element in row-major order, from the lowest bit of the first word on; 1
        where the elements differ. Further bits of the last word are 0.
      values: the bits of the new elements that differ, as unsigned integers of their size.
    """

    mask: UInt32[np.ndarray, " words"]
    values: Shaped[np.ndarray, " changed"]

    def blocks(self, block_bytes: int) -> list[ChangedElements]:
        """Returns the changes of each block; all but the last have whole words of the mask."""
        words = block_bytes // self.values.itemsize // 32
        starts = np.arange(0, len(self.mask), words)
        counts = np.bitwise_count(self.mask)
        ends = np.cumsum(np.add.reduceat(counts, starts, dtype=np.int64)).tolist()
        spans = zip(starts.tolist(), itertools.pairwise([0, *ends]), strict=True)
        return [
            ChangedElements(self.mask[start : start + words], self.values[begin:end])
            for start, (begin, end) in spans
        ]

    @property
    def positions(self) -> Positions:
        """Returns the positions of the elements that differ, in order."""
        octets = self.mask.astype("<u4", copy=False).view(np.uint8)
        used = np.flatnonzero(octets != 0)
        few = 2 * len(used) < len(octets)  # Then few bits are unpacked.
        bits = np.unpackbits(octets[used] if few else octets, bitorder="little")
        found: Positions = np.flatnonzero(bits.view(np.bool_))
        return used[found >> 3] * 8 + (found & 7) if few else found


class EncodedBlock(NamedTuple):
    """An encoded block.

    Attributes:
      encoding: how it is encoded.
      payload: its bytes; those of a RAW block are the block's own, not a copy.
      changed: number of elements that differ from the base.
    """

    encoding: Encoding
    payload: bytes | memoryview
    changed: int


def encode(
    new: Bytes, base: Bytes, itemsize: int, changes: ChangedElements | None = None
) -> EncodedBlock:
    """Encodes a block as its difference to a base of the same size.

    The result is RAW where no other encoding is smaller.

    Args:
      new, base: contiguous bytes.
      itemsize: bytes of an element: 1, 2, 4 or 8.
      changes: changes that make the block of its base, which are then written to `new`. By default
        `new` is the block, and is compared with its base.
    """
    elements, before = new.view(_UNSIGNED[itemsize]), base.view(_UNSIGNED[itemsize])
    if changes is None:
        positions: Positions = np.flatnonzero(elements != before)
        values = elements[positions]
    else:
        positions, values = changes.positions, changes.values
        new[:] = base
        elements[positions] = values
    count = len(positions)
    if not count:
        return EncodedBlock(Encoding.SAME, b"", 0)
    if count <= _MOST_SPARSE * len(elements):
        runs = [_gaps(positions), _planes(values ^ before[positions])]
        encoding = Encoding.SPARSE
    else:
        runs, encoding = [_planes(elements ^ before)], Encoding.PLANES
    content = np.concatenate([np.frombuffer(_COUNT.pack(count), np.uint8), *runs])
    payload = bytes(cramjam.zstd.compress(content.data, _LEVEL))
    if len(payload) >= new.nbytes:
        return EncodedBlock(Encoding.RAW, new.data, count)
    return EncodedBlock(encoding, payload, count)


def decode(encoding: int, payload: bytes | memoryview, block: Bytes, itemsize: int) -> None:
    """Turns a block, in place, from its base into the encoded block.

    Args:
      encoding: an `Encoding`.
      payload: the encoded bytes.
      block: contiguous bytes of the base; for RAW, whatever they are.
      itemsize: bytes of an element.

    Raises:
      EncodingError: the payload is no encoding of a block of this size. The block may then be
        anything.
    """
    if encoding == Encoding.SAME:
        _require(not len(payload), "bytes follow where none are due")
    elif encoding == Encoding.RAW:
        _require(len(payload) == block.nbytes, f"{len(payload)} bytes for {block.nbytes}")
        block[:] = np.frombuffer(payload, np.uint8)
    elif encoding in (Encoding.SPARSE, Encoding.PLANES):
        elements = block.view(_UNSIGNED[itemsize])
        content = _decompressed(payload)
        count = _COUNT.unpack_from(content)[0] if len(content) >= _COUNT.size else -1
        _require(0 <= count <= len(elements), f"{count} changed elements of {len(elements)}")
        rest = content[_COUNT.size :]
        if encoding == Encoding.PLANES:
            elements ^= _elements(rest, len(elements), itemsize)
        else:
            gaps, planes = (
                rest[: len(rest) - count * itemsize],
                rest[len(rest) - count * itemsize :],
            )
            positions = _positions(gaps)
            _require(len(positions) == count, f"{len(positions)} positions for {count} elements")
            _require(not count or positions[-1] < len(elements), "a position outside of the block")
            elements[positions] ^= _elements(planes, count, itemsize)
    else:
        raise EncodingError(f"no such encoding: {encoding}")


def empty(nbytes: int) -> Bytes:
    """Returns memory that begins where JAX can use it as an array of a CPU without a copy."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes]


def _gaps(positions: Positions) -> Bytes:
    at = positions.astype(np.uint32)  # Unsigned 32-bit integers are divided several times as fast.
    gaps: UInt32[np.ndarray, " changed"] = np.diff(at, prepend=np.uint32(_WRAPPED)) - np.uint32(1)
    if gaps.max() < _ESCAPE:
        return gaps.astype(np.uint8)
    escapes = gaps // np.uint32(_ESCAPE)
    ends = np.cumsum(escapes + np.uint32(1), dtype=np.int64) - 1
    written = np.full(ends[-1] + 1, _ESCAPE, np.uint8)
    written[ends] = gaps - escapes * np.uint32(_ESCAPE)
    return written


def _positions(gaps: Bytes) -> np.ndarray:
    is_end = gaps != _ESCAPE
    _require(not len(gaps) or bool(is_end[-1]), "a gap without an end")
    return np.cumsum(gaps.astype(np.int64) + is_end)[is_end] - 1


def _planes(elements: np.ndarray) -> Bytes:
    # Shifts are several times as fast as a transposed copy of the bytes.
    shifts = range(0, 8 * elements.itemsize, 8)
    return np.concatenate([(elements >> elements.dtype.type(s)).astype(np.uint8) for s in shifts])


def _elements(planes: Bytes, count: int, itemsize: int) -> np.ndarray:
    _require(len(planes) == count * itemsize, f"{len(planes)} bytes for {count} elements")
    dtype = np.dtype(_UNSIGNED[itemsize])
    elements = np.zeros(count, dtype)
    for number, plane in enumerate(planes.reshape(itemsize, count)):
        elements |= plane.astype(dtype) << dtype.type(8 * number)
    return elements


def _decompressed(payload: bytes | memoryview) -> Bytes:
    try:
        return np.frombuffer(cramjam.zstd.decompress(payload), np.uint8)
    except cramjam.DecompressionError as error:
        raise EncodingError(f"zstd cannot read it: {error}") from error


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise EncodingError(f"the encoded block is damaged: {what}")
