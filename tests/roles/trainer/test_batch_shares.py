"""Shares of a batch: each process has the rows of its devices, and together they are the batch."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.isolation.codec import decode, encode
from rl_sync.models.placement import put, shardings
from rl_sync.roles.trainer import batch_shares
from rl_sync.roles.trainer.batch_shares import BatchPlacer, ProcessShare
from rl_sync.types import Demonstrations, Packing, Rows, TrainBatch

ROWS = np.arange(32).reshape(8, 4)


def sharding(*axes: str | None) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "tensor"))
    return NamedSharding(mesh, PartitionSpec(*axes))


@pytest.fixture
def in_two_processes(monkeypatch):
    """As if devices 0 and 1 were of process 0, and devices 2 and 3 of process 1."""

    class Device(SimpleNamespace):
        __hash__ = object.__hash__

    device_regions = batch_shares.device_regions
    monkeypatch.setattr(
        batch_shares,
        "device_regions",
        lambda abstract: {
            Device(process_index=device.id // 2): region
            for device, region in device_regions(abstract).items()
        },
    )


def test_a_process_is_handed_the_rows_of_its_devices_and_no_others(in_two_processes):
    first, second = (ProcessShare.of(ROWS, sharding("data"), process) for process in (0, 1))
    assert {region: block.tolist() for region, block in first.blocks.items()} == {
        ((0, 4), (0, 4)): ROWS[:4].tolist()
    }
    assert {region: block.tolist() for region, block in second.blocks.items()} == {
        ((4, 8), (0, 4)): ROWS[4:].tolist()
    }


def test_what_all_devices_read_is_handed_to_each_process_once(in_two_processes):
    for process in (0, 1):
        (block,) = ProcessShare.of(ROWS[0], sharding(), process).blocks.values()
        np.testing.assert_array_equal(block, ROWS[0])


def test_columns_go_to_the_devices_that_read_them(in_two_processes):
    share = ProcessShare.of(ROWS, sharding("tensor", "data"), 1)
    assert sorted(share.blocks) == [((0, 4), (2, 4)), ((4, 8), (2, 4))]
    np.testing.assert_array_equal(share.blocks[(4, 8), (2, 4)], ROWS[4:, 2:])


@pytest.mark.parametrize("axes", [("data",), ("tensor", "data"), (None, ("data", "tensor")), ()])
@pytest.mark.parametrize("dtype", [np.int32, np.float32, bool, jnp.bfloat16])
def test_a_share_that_is_placed_is_the_array(axes, dtype):
    array = ROWS.astype(dtype)
    share = decode(encode(ProcessShare.of(array, sharding(*axes), 0)))
    placed = share.placed(sharding(*axes))
    assert placed.sharding == sharding(*axes)
    assert placed.dtype == dtype
    np.testing.assert_array_equal(np.asarray(placed), array)


class ByDevice:
    """A trainer that reads rows by device."""

    def batch_shardings(self, batch):
        return jax.tree.map(lambda x: sharding("data") if len(x.shape) > 1 else sharding(), batch)

    def place(self, batch):
        return jax.tree.map(jax.device_put, batch, self.batch_shardings(batch))


def make_batch() -> TrainBatch:
    rows = Rows(
        tokens=jnp.asarray(ROWS),
        completion_mask=jnp.asarray(ROWS % 2 == 0),
        behavior_logprobs=jnp.asarray(ROWS, jnp.float32),
        policy_versions=jnp.asarray(ROWS),
        packing=Packing(positions=jnp.asarray(ROWS), trajectories=jnp.asarray(ROWS)),
    )
    return TrainBatch(
        rows,
        rewards=jnp.arange(8.0),
        demonstrations=Demonstrations(tokens=jnp.asarray(ROWS), mask=jnp.asarray(ROWS > 3)),
    )


def test_the_other_processes_place_what_the_first_one_laid_out():
    told = []

    def hand_out(what, thunk, share):
        batch = thunk()
        told.append(encode(share(batch, 1)))
        return batch

    def nothing():
        raise AssertionError("only the first process lays a batch out")

    first = BatchPlacer(SimpleNamespace(leads=True, hand_out=hand_out), ByDevice(), [5, 0])
    placed = first.place(make_batch)
    session = SimpleNamespace(leads=False, hand_out=lambda what, thunk, share: decode(told.pop()))
    other = BatchPlacer(session, ByDevice(), [5, 0]).place(nothing)
    assert jax.tree.structure(other) == jax.tree.structure(placed)
    assert shardings(other) == shardings(placed)
    jax.tree.map(np.testing.assert_array_equal, other, placed)


def test_a_batch_that_is_placed_stays_where_it_is():
    """The compiled step places its batch again, which costs nothing then."""
    placed = ByDevice().place(make_batch())
    again = jax.tree.map(put, placed, shardings(placed))
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(placed), strict=True))
