"""Arrays as TensorProto messages, the way Reverb stores them in a chunk.

Numbers are encoded as their little-endian bytes, compressed with raw snappy. Strings are encoded as
their lengths (varints), then their bytes, not compressed.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import cramjam
import ml_dtypes
import numpy as np

from rl_sync.replay import reverb_pb2
from rl_sync.replay.compression import compress, varint

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DT_STRING = 7
_CONTENT_FIELD = reverb_pb2.Tensor.TENSOR_CONTENT_FIELD_NUMBER
_CODES: dict[np.dtype, int] = {
    np.dtype(dtype): code
    for dtype, code in (
        (np.float32, 1), (np.float64, 2), (np.int32, 3), (np.uint8, 4), (np.int16, 5), (np.int8, 6),
        (np.int64, 9), (np.bool_, 10), (ml_dtypes.bfloat16, 14), (np.uint16, 17), (np.float16, 19),
        (np.uint32, 22), (np.uint64, 23), (np.complex64, 8), (np.complex128, 18),
    )
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_SMALL_BYTES = 1 << 16
_IS_LITTLE = sys.byteorder == "little"


class EncodedTensor(NamedTuple):
    """A serialized message: its head, then its content.

    Attributes:
      head: the message without the content, but with the content's tag and length.
      content: the content, in pieces to be concatenated.
      content_bytes: the number of bytes of the content.
      size_bytes: the number of bytes of the array, before compression.
    """

    head: bytes
    content: list[Buffer]
    content_bytes: int
    size_bytes: int


def encode(array: np.ndarray) -> EncodedTensor:
    """Encodes an array; the content is not copied after compression.

    Raises:
      ValueError: the dtype cannot be stored.
    """
    code = _CODES.get(array.dtype)
    if code is not None and _IS_LITTLE and array.nbytes <= _SMALL_BYTES:
        # Copying small data is faster than avoiding the copy.
        small = bytes(cramjam.snappy.compress_raw(array.tobytes()))
        return EncodedTensor(
            _head(code, array.shape, len(small)), [small], len(small), array.nbytes
        )
    if array.dtype.kind in "SUO":
        content = encode_strings([_as_bytes(value) for value in array.ravel()])
        return _encoded(_DT_STRING, array.shape, [content], len(content))
    array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    if array.dtype not in _CODES:
        raise ValueError(
            f"A replay item holds numbers of {', '.join(str(dtype) for dtype in _CODES)}, and"
            f" strings; an array of {array.dtype} must be converted to one of them."
        )
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return _encoded(_CODES[array.dtype], array.shape, compress(flat), array.nbytes)


def _encoded(
    code: int, shape: tuple[int, ...], content: list[Buffer], size_bytes: int
) -> EncodedTensor:
    content_bytes = sum(memoryview(piece).nbytes for piece in content)
    return EncodedTensor(_head(code, shape, content_bytes), content, content_bytes, size_bytes)


@functools.lru_cache(maxsize=4096)
def _head(code: int, shape: tuple[int, ...], content_bytes: int) -> bytes:
    proto = reverb_pb2.Tensor(dtype=code)
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    return proto.SerializeToString() + field(_CONTENT_FIELD, content_bytes)


@functools.lru_cache(maxsize=4096)
def field(number: int, size_bytes: int) -> bytes:
    """Returns the bytes before a field's content in a serialized message: its tag and length."""
    return varint(number << 3 | 2) + varint(size_bytes)


def read(proto: reverb_pb2.Tensor, *, delta_encoded: bool = False) -> np.ndarray:
    """Returns the array of a message, in memory of its own.

    Args:
      proto: a tensor of a chunk.
      delta_encoded: whether the chunk is delta-encoded; then integers of rank ≥ 2 are differences
        along the first axis.

    Raises:
      ValueError: the dtype is not one of ours, or the content's size does not fit the shape.
    """
    shape = shape_of(proto)
    if proto.dtype == _DT_STRING:
        strings = np.empty(math.prod(shape), dtype=object)
        content = proto.tensor_content
        strings[:] = decode_strings(content, strings.size) if content else list(proto.string_val)
        return strings.reshape(shape)
    if proto.dtype not in _DTYPES:
        raise ValueError(f"A replay item holds a tensor of TensorFlow dtype {proto.dtype}.")
    array = np.empty(shape, _DTYPES[proto.dtype])
    content = proto.tensor_content
    if array.nbytes:
        flat = array.reshape(-1).view(np.uint8).data
        written = cramjam.snappy.decompress_raw_into(content, flat)
        if written != array.nbytes:
            raise ValueError(
                f"A replay item holds {written} bytes for a tensor of {array.nbytes}"
                f" ({array.dtype}{list(shape)})."
            )
    if delta_encoded and array.dtype.kind in "iu" and array.ndim >= 2:
        np.cumsum(array, axis=0, dtype=array.dtype, out=array)
    return array


def shape_of(proto: reverb_pb2.Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    return _shape(proto.tensor_shape.SerializeToString())


@functools.lru_cache(maxsize=4096)
def _shape(serialized: bytes) -> tuple[int, ...]:
    return tuple(dim.size for dim in reverb_pb2.TensorShape.FromString(serialized).dim)


def encode_strings(strings: list[bytes]) -> bytes:
    """Encodes strings as TensorFlow does: all lengths as varints, then all bytes."""
    return b"".join([*(varint(len(string)) for string in strings), *strings])


def decode_strings(content: bytes, count: int) -> list[bytes]:
    """Inverts `encode_strings`."""
    lengths, position = [], 0
    for _ in range(count):
        length = shift = 0
        while True:
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    strings = []
    for length in lengths:
        strings.append(content[position : position + length])
        position += length
    return strings


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(
        f"An object array of a replay item holds strings or bytes only, not {value!r}."
    )
