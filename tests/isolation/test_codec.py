"""Messages between the processes of a program: they arrive unchanged, and run no code."""

from __future__ import annotations

import datetime
import pickle
from typing import NamedTuple

import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from rl_sync.checkpoints.snapshots import SnapshotError
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.isolation.codec import (
    Records,
    decode,
    decode_of_host,
    encode,
    encode_for_worker,
    record,
)
from rl_sync.messages.events import LeaseGrant
from rl_sync.records.json_lines import RecordsError
from rl_sync.replay.replay_interface import ReplayError, ReplayUnavailableError
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.rubric import ScoringRequest
from rl_sync.roles.trainer.batch_shares import ProcessShare
from rl_sync.scoring.reward_server_calls import SubmitCompletions
from rl_sync.types import Lease, Packing, Prompt, Rows, SharedPrompts, TrainBatch
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTransferError
from rl_sync.weights.storage import MismatchError


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**40),
        1.5,
        "text",
        b"\x00\xff",
        [1, [2.0, None]],
        (1, ("a", [b""]), ()),
        {"a": (1, 2), "b": {}},
        {((0, 4), (0, 2)): "region", 7: "number"},
    ],
)
def test_plain_values_arrive_as_they_were(value):
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


@pytest.mark.parametrize("dtype", ["int32", "float64", "bool", ">i2", jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_arrive_to_the_bit_and_can_be_written(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    arrived = decode(encode(array))
    np.testing.assert_array_equal(arrived, array)
    assert arrived.dtype == array.dtype.newbyteorder("=")
    assert arrived.shape == shape
    if shape:
        arrived[...] = arrived


def test_arrays_that_are_not_contiguous_arrive():
    array = np.arange(12).reshape(3, 4)[::2, 1:].T
    np.testing.assert_array_equal(decode(encode(array)), array)


def test_records_arrive_with_their_fields():
    prompts = SharedPrompts(*(np.full(2, i) for i in range(3)))
    packing = Packing(np.arange(3), trajectories=np.zeros(3, np.int32), prompts=prompts)
    rows = Rows(*(np.full(2, i) for i in range(4)), packing=packing)
    batch = TrainBatch(rows, np.full(2, 4))
    arrived = decode(encode(batch))
    assert type(arrived) is TrainBatch
    assert type(arrived.rows) is Rows
    assert type(arrived.rows.packing) is Packing
    assert type(arrived.rows.packing.prompts) is SharedPrompts
    assert arrived.demonstrations is None
    np.testing.assert_array_equal(arrived.rewards, [4, 4])
    share = ProcessShare((2,), "int32", {((0, 2),): np.arange(2, dtype=np.int32)})
    assert decode(encode(share)).blocks.keys() == share.blocks.keys()


def test_lists_of_records_arrive_column_by_column_with_records_in_them():
    leases = Records(Lease(i, 2 * i, 0, Prompt(i, f"{i}", "", {"n": i})) for i in range(50))
    arrived = decode(encode(LeaseGrant(1, 2, True, leases))).leases
    assert arrived == leases
    assert {type(lease.prompt) for lease in arrived} == {Prompt}
    assert len(encode(leases)) < len(encode([*leases])) / 2
    items = Records(ScoringRequest({"answer": i}, Completion("2")) for i in range(3))
    assert decode(encode(SubmitCompletions("exact", items))).items == items
    judged = Records([Judgement(1.0, "yes", {"a": 1.0}), Judgement.unknown("no")])
    assert decode(encode(judged)) == judged
    assert decode(encode(Records())) == []
    some = Records(Packing(i, i, SharedPrompts(i, i, i) if i else None) for i in range(3))
    assert decode(encode(some)) == some


def test_lists_of_different_records_are_refused():
    with pytest.raises(TypeError, match="A list of Lease records has a record"):
        encode(Records([Lease(0, 0, 0, Prompt(0, "", "")), Prompt(0, "", "")]))
    with pytest.raises(TypeError, match="A list of int records has a record"):
        encode(Records([1]))


def test_errors_arrive_as_what_they_are_where_a_message_is_all_they_have():
    for error in (
        RunStoppedError("enough"),
        TimeoutError(),
        ReplayUnavailableError("gone"),
        ReplayError("full"),
        RemoteError("no such step"),
        WeightsTransferError("lost"),
        RunEndedError("no numbers"),
        SnapshotError("damaged"),
        MismatchError("other shapes"),
        RecordsError("cannot be written"),
    ):
        arrived = decode(encode(error))
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
    for error in (WeightsMismatchError(3, "aa", "bb"), KeyError("name"), KeyboardInterrupt("x")):
        arrived = decode(encode(error))
        assert type(arrived) is RuntimeError
        assert str(arrived) == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("value", [object(), {1}, len, np.array(["a"]), jnp.zeros(2)])
def test_what_cannot_be_sent_is_refused_by_name(value):
    with pytest.raises(TypeError, match="cannot be sent to other processes"):
        encode(value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"positions": 1, "prompts": None, "segments": None},
            "A Packing that arrived lacks trajectories: the processes",
        ),
        (
            {"positions": 1, "trajectories": 2, "prompts": None, "segments": None, "rows": 3},
            "A Packing that arrived has rows, which it does not know: the processes",
        ),
        (
            {"positions": 1, "prompts": None, "segments": None, "rows": 3},
            "A Packing that arrived lacks trajectories and has rows, which it does not know",
        ),
    ],
)
def test_fields_of_a_record_that_are_missing_or_unknown_are_named(fields, why):
    with pytest.raises(ValueError, match=why):
        decode(msgpack.packb(msgpack.ExtType(3, msgpack.packb(["Packing", fields]))))


def test_only_a_worker_reads_what_only_python_knows_and_of_its_own_host_alone():
    row = {"when": datetime.date(2026, 1, 2), "parts": ({1}, [np.array(["a"], object)], np.ones(2))}
    data = encode_for_worker(row)
    found = decode_of_host(data)
    assert found["when"] == row["when"]
    assert found["parts"][0] == {1}
    assert found["parts"][1][0] == np.array(["a"], object)
    assert (found["parts"][2] == np.ones(2)).all()
    with pytest.raises(ValueError, match="A pickled object arrived, which only a worker reads"):
        decode(data)
    assert decode(encode_for_worker({"a": (1, "b")})) == {"a": (1, "b")}


def test_two_records_of_one_name_are_refused():
    class Packing(NamedTuple):
        rows: int

    with pytest.raises(AssertionError, match="two records are called Packing"):
        record(Packing)


def test_what_would_run_code_is_not_read():
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    with pytest.raises(ValueError, match=r".*"):
        decode(pickle.dumps(Evil()))
    for name in ("Popen", "RewardPool"):
        with pytest.raises(ValueError, match=f"A {name} is not a record"):
            decode(msgpack.packb(msgpack.ExtType(3, msgpack.packb([name, {"args": "true"}]))))
    made = decode(msgpack.packb(msgpack.ExtType(4, msgpack.packb(["os", "system", "true"]))))
    assert type(made) is RuntimeError
    made = decode(msgpack.packb(msgpack.ExtType(4, msgpack.packb(["builtins", "exec", "1"]))))
    assert type(made) is RuntimeError
