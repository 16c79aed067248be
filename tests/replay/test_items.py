"""Items come out of every replay buffer as they went in."""

import ml_dtypes
import numpy as np
import pytest

from rl_sync.types import Group


def test_all_dtypes_come_back_with_names_shapes_and_bits(replay):
    rng = np.random.default_rng(0)
    columns = {
        name: rng.integers(0, 2**8, (3, 4)).astype(name)
        for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16")
    }
    columns |= {
        "bfloat16": rng.standard_normal((2, 1, 3)).astype(ml_dtypes.bfloat16),
        "float32": np.array([np.nan, np.inf, -0.0, 1e-45], np.float32),
        "scalar": np.array(1.5),
        "empty": np.zeros((2, 0, 3), np.int32),
        "strided": np.arange(20, dtype=np.float32).reshape(4, 5)[::2, ::-1],
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        "a name with spaces, ü": np.arange(3),
    }
    replay.insert("long_queue", columns, timeout_secs=5)
    [one] = replay.sample("long_queue", timeout_secs=5)
    assert list(one.columns) == sorted(columns)
    for name, column in columns.items():
        assert one.columns[name].dtype == column.dtype, name
        assert one.columns[name].shape == column.shape, name
        assert one.columns[name].tobytes() == column.tobytes(), name
        assert one.columns[name].flags.writeable


def test_big_endian_numbers_keep_their_values(replay):
    replay.insert("long_queue", {"x": np.array([1, 500], ">i4")}, timeout_secs=5)
    [one] = replay.sample("long_queue", timeout_secs=5)
    assert one.columns["x"].tolist() == [1, 500]


def test_strings_come_back_as_bytes(replay):
    columns = {
        "unicode": np.array([["prompt", "ü" * 200], ["", "z"]]),
        "bytes": np.array([b"a", b"bcd"]),
        "object": np.array(["x", b"\x00\xff\x00"], dtype=object),
        "scalar": np.array("answer"),
    }
    replay.insert("long_queue", columns, timeout_secs=5)
    [one] = replay.sample("long_queue", timeout_secs=5)
    assert one.columns["unicode"].tolist() == [[b"prompt", "ü".encode() * 200], [b"", b"z"]]
    assert one.columns["bytes"].tolist() == [b"a", b"bcd"]
    assert one.columns["object"].tolist() == [b"x", b"\x00\xff\x00"]
    assert one.columns["scalar"].shape == ()
    assert one.columns["scalar"].item() == b"answer"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["2024-01-01"], "datetime64[D]"), "datetime64"),
        (np.array([{}], dtype=object), "strings or bytes only"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_column(replay, array, message):
    with pytest.raises(ValueError, match=f"Column 'x'.*{message}"):
        replay.insert("queue", {"x": array}, timeout_secs=5)
    with pytest.raises(ValueError, match="at least one column"):
        replay.insert("queue", {}, timeout_secs=5)


def test_changing_an_array_later_changes_no_item(replay):
    array = np.zeros(3, np.int32)
    replay.insert("uniform", {"x": array}, timeout_secs=5)
    array += 1
    [first] = replay.sample("uniform", timeout_secs=5)
    first.columns["x"] += 1
    assert replay.sample("uniform", timeout_secs=5)[0].columns["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("baselines", [None, np.linspace(0, 1, 8, dtype=np.float32)])
def test_a_group_comes_back_to_the_bit(replay, baselines):
    rng = np.random.default_rng(1)
    group = Group(
        lease_id=7,
        ordinal=3,
        prompt_id=2**30,
        explorer=1,
        tokens=rng.integers(0, 500, (8, 64)).astype(np.int32),
        completion_mask=rng.random((8, 64)) > 0.5,
        behavior_logprobs=rng.standard_normal((8, 64)).astype(np.float32),
        policy_versions=rng.integers(-1, 5, (8, 64)).astype(np.int32),
        rewards=rng.standard_normal(8).astype(np.float32),
        baselines=baselines,
        parts=None if baselines is None else rng.random((8, 3)).astype(np.float32),
    )
    replay.insert("long_queue", group.to_columns(), timeout_secs=5)
    back = Group.from_columns(replay.sample("long_queue", timeout_secs=5)[0].columns)
    assert (back.baselines is None) == (baselines is None)
    for name, column in group.to_columns().items():
        np.testing.assert_array_equal(back.to_columns()[name], column)
        assert back.to_columns()[name].dtype == column.dtype


@pytest.mark.gate
def test_items_of_many_megabytes(replay):
    rng = np.random.default_rng(2)
    noise = rng.integers(0, 256, 24 << 20, dtype=np.uint8)
    columns = {"noise": noise, "tokens": rng.integers(0, 512, 2 << 20).astype(np.int32)}
    for i in range(3):
        replay.insert("long_queue", {**columns, "i": np.int32(i)}, timeout_secs=20)
    drawn = replay.sample("long_queue", 3, timeout_secs=20)
    assert [int(one.columns["i"]) for one in drawn] == [0, 1, 2]
    for one in drawn:
        np.testing.assert_array_equal(one.columns["noise"], noise)
        np.testing.assert_array_equal(one.columns["tokens"], columns["tokens"])
