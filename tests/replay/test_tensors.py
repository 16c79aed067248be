"""Arrays as TensorProto messages, to the byte."""

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.replay import reverb_pb2, tensors, wire


def written(array):
    encoded = tensors.encode(array)
    return reverb_pb2.Tensor.FromString(encoded.head + b"".join(encoded.content))


def test_numbers_are_their_bytes_in_raw_snappy():
    proto = written(np.array([[1, 2, 256]], np.int32))
    assert proto.dtype == 3
    assert [dim.size for dim in proto.tensor_shape.dim] == [1, 3]
    raw = bytes(cramjam.snappy.decompress_raw(proto.tensor_content))
    assert raw == bytes([1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0])


def test_strings_are_their_lengths_then_their_bytes():
    proto = written(np.array([b"hi", b"there!"], dtype=object))
    assert proto.dtype == 7
    assert proto.tensor_content == b"\x02\x06hithere!"
    assert tensors.encode_strings([b"x" * 300]) == b"\xac\x02" + b"x" * 300


def test_strings_are_also_read_from_string_val():
    proto = reverb_pb2.Tensor(dtype=7, string_val=[b"a", b""])
    proto.tensor_shape.dim.add(size=2)
    assert tensors.read(proto).tolist() == [b"a", b""]


@given(st.lists(st.binary(max_size=300)))
def test_any_strings_round_trip(strings):
    assert tensors.decode_strings(tensors.encode_strings(strings), len(strings)) == strings


def test_delta_encoding_is_undone_along_the_first_axis_with_wrap_around():
    proto = written(np.array([[250, 3], [10, 255], [0, 1]], np.uint8))
    assert tensors.read(proto, delta_encoded=True).tolist() == [[250, 3], [4, 2], [4, 3]]
    assert tensors.read(proto).tolist() == [[250, 3], [10, 255], [0, 1]]
    vector = written(np.array([5, 5], np.int64))
    assert tensors.read(vector, delta_encoded=True).tolist() == [5, 5]
    floats = written(np.ones((2, 2), np.float32))
    assert tensors.read(floats, delta_encoded=True).tolist() == [[1, 1], [1, 1]]


def test_malformed_tensors_are_refused():
    proto = written(np.zeros((1, 4), np.int32))
    proto.tensor_shape.dim[1].size = 5
    with pytest.raises(ValueError, match=r"16 bytes for a tensor of 20 \(int32\[1, 5\]\)"):
        tensors.read(proto)
    with pytest.raises(ValueError, match="TensorFlow dtype 21"):
        tensors.read(reverb_pb2.Tensor(dtype=21))


def test_an_item_is_one_chunk_with_its_columns_sorted_and_their_names_last():
    columns = {"b": np.int32(5), "a": np.zeros(3, np.float32)}
    key, pieces, size_bytes = wire.encode_item("table", columns, 2.0)
    request = reverb_pb2.InsertStreamRequest.FromString(b"".join(pieces))
    [chunk], [item] = request.chunks, request.items
    assert (item.key, item.table, item.priority, size_bytes) == (key, "table", 2.0, 36)
    assert [tensor.dtype for tensor in chunk.data.tensors] == [1, 3, 7]
    assert chunk.data.tensors[2].tensor_content == b"\x0f\x01\x01rl_sync.columnsab"
    parts = [column.chunk_slices[0] for column in item.flat_trajectory.columns]
    assert [(part.index, part.offset, part.length) for part in parts] == [
        (0, 0, 1), (1, 0, 1), (2, 0, 1),
    ]  # fmt: skip
    assert all(column.squeeze for column in item.flat_trajectory.columns)


def test_an_item_without_one_of_its_chunks_is_refused():
    pieces = wire.encode_item("table", {"a": np.int32(1)}, 1.0).pieces
    request = reverb_pb2.InsertStreamRequest.FromString(b"".join(pieces))
    with pytest.raises(ValueError, match="refers to chunk"):
        wire.read_columns(request.items[0].flat_trajectory, [])
