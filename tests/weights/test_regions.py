"""Regions are cut without gaps or overlaps, and meshes give the regions of their devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from rl_sync.weights.regions import (
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
def test_cells_cover_a_region_once_and_lie_in_or_outside_each_other_region(data, shape):
    region = data.draw(regions(shape))
    others = data.draw(st.lists(regions(shape), max_size=3))
    cells = cut(region, others)
    seen = np.zeros(shape, int)
    whole = tuple((0, length) for length in shape)
    for cell in cells:
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
    abstract = AbstractMesh((2, 2), ("a", "b"))

    def like(mesh):
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct((8, 12), "float32", sharding=sharding)

    assert_regions(list(mesh.devices.flat), {"w": like(mesh)})
    assert mesh_regions({"w": like(abstract)}) == mesh_regions({"w": like(mesh)})


def assert_regions(devices, like):
    """Checks a mesh's regions against those of its devices, in their order."""
    by_leaf = [device_regions(leaf) for leaf in jax.tree.leaves(like)]
    expected = tuple(tuple(leaf[device] for leaf in by_leaf) for device in devices)
    assert mesh_regions(like) == expected
