"""Cells hold every element once and know who needs it; meshes give the regions of their devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from rl_sync.weights.cells import (
    Cell,
    cells,
    cut,
    device_regions,
    mesh_regions,
    overlap,
    size_of,
    within,
)

SPECS = [
    PartitionSpec(),
    PartitionSpec("a"),
    PartitionSpec(None, "b"),
    PartitionSpec("b", "a"),
    PartitionSpec(("a", "b")),
    PartitionSpec(None, ("b", "a")),
]

sizes = st.integers(1, 7)
shapes = st.lists(sizes, max_size=3)


@st.composite
def regions(draw, shape):
    intervals = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        intervals.append((start, draw(st.integers(start + 1, length))))
    return tuple(intervals)


@settings(deadline=None, max_examples=50)
@given(st.data(), shapes)
def test_a_region_is_cut_without_gaps_or_overlaps_at_the_edges_of_others(data, shape):
    region = data.draw(regions(shape))
    others = data.draw(st.lists(regions(shape), max_size=3))
    seen = np.zeros(shape, int)
    whole = tuple((0, length) for length in shape)
    for cell in cut(region, others):
        seen[within(cell, whole)] += 1
        for other in others:
            assert overlap(cell, other) in (None, cell)
    assert seen.sum() == size_of(region)
    assert (seen[within(region, whole)] == 1).all()


def test_regions_that_only_touch_share_nothing():
    assert overlap(((0, 4), (0, 2)), ((4, 8), (0, 2))) is None
    assert overlap(((0, 4), (0, 2)), ((3, 8), (1, 9))) == ((3, 4), (1, 2))
    assert overlap((), ()) == ()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_mesh_without_devices_places_arrays_as_one_with_devices_does(spec):
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[::-1][:4])
    without = AbstractMesh((2, 2), ("a", "b"))

    def described(mesh):
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct((8, 12), "float32", sharding=sharding)

    assert_regions(list(mesh.devices.flat), {"w": described(mesh)})
    assert mesh_regions({"w": described(without)}) == mesh_regions({"w": described(mesh)})


def assert_regions(devices, abstract):
    """Checks a mesh's regions against those of its devices, in their order."""
    by_leaf = [device_regions(leaf) for leaf in jax.tree.leaves(abstract)]
    expected = tuple(tuple(leaf[device] for leaf in by_leaf) for device in devices)
    assert mesh_regions(abstract) == expected


@settings(deadline=None, max_examples=100)
@given(st.data(), shapes)
def test_readers_need_a_cell_whole_or_not_at_all(data, shape):
    whole = tuple((0, length) for length in shape)
    targets = data.draw(st.lists(regions(shape), max_size=4))
    seen = np.zeros(shape, int)
    for cell, holders, readers in cells([whole, whole], targets):
        assert holders == (0, 1)
        seen[within(cell, whole)] += 1
        for target, region in enumerate(targets):
            assert overlap(cell, region) == (cell if target in readers else None)
    assert (seen == 1).all()


def test_each_holders_region_is_cut_for_its_own_readers():
    halves = ((0, 4),), ((4, 8),)
    assert [*cells(halves, [((0, 8),), ((2, 4),)])] == [
        Cell(((0, 2),), (0,), (0,)),
        Cell(((2, 4),), (0,), (0, 1)),
        Cell(((4, 8),), (1,), (0,)),
    ]


def test_a_scalar_has_readers_and_an_empty_leaf_has_no_cells():
    assert [*cells([()], [(), ()])] == [((), (0,), (0, 1))]
    assert [*cells([((0, 0),)], [((0, 0),)])] == []
