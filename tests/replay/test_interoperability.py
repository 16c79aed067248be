"""Our client and the official one read each other's items, at a real server and at ours."""

import ml_dtypes
import numpy as np
import pytest

from rl_sync.replay.client import ReplayClient

pytestmark = pytest.mark.gate


@pytest.fixture(params=["reverb", "served"])
def served(request, backends):
    backends[request.param].replay.reset("uniform")
    return backends[request.param]


def described(array):
    """Describes an array as official.py does."""
    if array.dtype == object:
        strings = [string.hex() for string in array.ravel()]
        return {"dtype": "object", "shape": list(array.shape), "strings": strings}
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "bytes": array.tobytes().hex(),
    }


@pytest.mark.parametrize("case", ["insert", "delta", "trajectory"])
def test_reads_what_the_official_client_wrote_as_the_official_client_does(served, official, case):
    official.ask(served.address, "write", table="uniform", case=case)
    theirs = official.ask(served.address, "read", table="uniform", count=1)
    [ours] = served.replay.sample("uniform", timeout_secs=5)
    assert list(theirs) == [str(ours.key)]
    assert [described(array) for array in ours.columns.values()] == theirs[str(ours.key)]["columns"]
    assert ours.priority == theirs[str(ours.key)]["priority"]


def test_undoes_delta_encoding_over_chunks_and_slices(served, official):
    official.ask(served.address, "write", table="uniform", case="delta")
    [sample] = served.replay.sample("uniform", timeout_secs=5)
    columns = list(sample.columns.values())
    # Sorted: bool, float, then matrix, scalar and vector of int16, int32, …, uint8.
    int32_matrix = columns[5]
    expected = np.stack([np.arange(6).reshape(2, 3) * (i + 50) for i in range(1, 8)])
    np.testing.assert_array_equal(int32_matrix, expected)
    assert int32_matrix.dtype == np.int32
    uint8_vector = columns[-1]
    assert uint8_vector.dtype == np.uint8
    np.testing.assert_array_equal(uint8_vector[:, 0], np.arange(201, 208))


def test_the_official_client_reads_what_we_wrote(served, official):
    columns = {
        "bool": np.array([[True, False], [False, False]]),
        "int32": np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
        "int64_scalar": np.int64(-5),
        "float32": np.linspace(-1, 1, 1000, dtype=np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "string": np.array(["a", "é" * 100], dtype=object),
        "string_scalar": np.array(b"\x00raw"),
    }
    served.replay.insert("uniform", columns, priority=3.5, timeout_secs=5)
    [item] = official.ask(served.address, "read", table="uniform", count=1).values()
    *theirs, names = item["columns"]
    [sample] = served.replay.sample("uniform", timeout_secs=5)
    assert theirs == [described(sample.columns[name]) for name in sorted(columns)]
    assert [bytes.fromhex(name).decode() for name in names["strings"][1:]] == sorted(columns)
    assert item["priority"] == 3.5


def test_bfloat16_goes_both_ways(served, official):
    values = np.array([0.5, -3.0, 1e30], ml_dtypes.bfloat16)
    served.replay.insert("uniform", {"values": values}, timeout_secs=5)
    theirs = official.ask(served.address, "read_bfloat16", table="uniform")
    assert theirs == {"dtype": "bfloat16", "values": values.astype(np.float32).tolist()}

    served.replay.reset("uniform")
    official.ask(served.address, "write_bfloat16", table="uniform")
    [sample] = served.replay.sample("uniform", timeout_secs=5)
    assert sample.columns["column_0"].dtype == ml_dtypes.bfloat16
    assert sample.columns["column_0"].astype(float).tolist() == [[1.5, -2.0, 0.0]]
    assert sample.columns["column_1"].tolist() == [3]


def test_names_given_to_the_client_are_for_items_without_names(served, official):
    official.ask(served.address, "write", table="uniform", case="trajectory")
    with ReplayClient(served.address, columns=("a", "b", "c", "d", "e", "f", "g")) as client:
        [sample] = client.sample("uniform", timeout_secs=5)
        assert list(sample.columns) == list("abcdefg")
        assert sample.columns["f"] == 105
        assert sample.columns["c"].tolist() == (np.arange(6).reshape(2, 3) * 59).tolist()
    with (
        ReplayClient(served.address, columns=("a", "b")) as client,
        pytest.raises(ValueError, match="7 columns, but 2 names"),
    ):
        client.sample("uniform", timeout_secs=5)
