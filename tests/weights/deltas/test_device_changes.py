"""Versions compared on devices: the host gets the same bits, and artifacts are the same bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.weights.deltas import device_changes
from rl_sync.weights.deltas.device_changes import fetched, runs_of
from rl_sync.weights.deltas.encoding import ChangedElements, encode
from rl_sync.weights.deltas.history import VersionHistory
from rl_sync.weights.parts import Cutter, plan_manifest
from tests.weights.deltas.made import UNSIGNED

DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "bool")
SHAPES = ((64, 36), (3, 40, 7), (1025,), (), (5, 0))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, small_blocks):
    """Lets small parts be compared on devices, too."""
    monkeypatch.setattr(device_changes, "_LEAST_BYTES", 0)


def bits_of(x) -> np.ndarray:
    there = np.ascontiguousarray(np.asarray(x)).reshape(-1)
    return there.view(UNSIGNED[there.itemsize])


def random_array(shape, dtype: str, seed: int = 0) -> np.ndarray:
    """Returns an array of any bits, NaNs with payloads among them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    itemsize = jnp.dtype(dtype).itemsize
    raw = rng.integers(0, 256, (*shape, itemsize), np.uint8)
    return np.ascontiguousarray(raw).view(jnp.dtype(dtype))[..., 0].reshape(shape)


def stepped(x: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    """Returns an array of which about a share of the elements differ in their last bit."""
    bits = bits_of(x).copy()
    chosen = np.random.default_rng(seed).random(bits.size) < share
    bits[chosen] ^= 1
    return bits.view(x.dtype).reshape(x.shape)


def changes_of(new, base, runs: int | None = None):
    """Compares two arrays of one device, and returns what the host gets of them."""
    new, base = {0: jnp.asarray(new)}, {0: jnp.asarray(base)}
    found = device_changes.device_changes(new, base, {} if runs is None else {0: runs})
    return fetched(new, found)[0]


def made(changes: ChangedElements, base) -> np.ndarray:
    """Returns the bytes that changes make of a base."""
    there = bits_of(base)
    new = np.empty(there.nbytes, np.uint8)
    assert encode(new, there.view(np.uint8), there.itemsize, changes).changed == len(changes.values)
    return new


def test_the_mask_has_a_bit_for_each_element_and_values_are_the_new_bits():
    base = np.arange(70, dtype=np.float32)
    new = base.copy()
    new[[0, 33, 69]] = [-1, 5, 0.5]
    changes = changes_of(new, base)
    assert isinstance(changes, ChangedElements)
    np.testing.assert_array_equal(changes.mask, np.array([1, 1 << 1, 1 << 5], np.uint32))
    assert changes.values.tolist() == [0xBF800000, 0x40A00000, 0x3F000000]


def test_bits_are_compared_not_values():
    nan, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    base = np.array([nan, nan, 0.0, 0.0, 1.0] + [2.0] * 40, np.float32)
    new = np.array([nan, other, 0.0, -0.0, 1.0] + [2.0] * 40, np.float32)
    changes = changes_of(new, base)
    assert changes.mask.tolist() == [0b01010, 0]
    assert changes.values.tolist() == [0x7FC00001, 0x80000000]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_share_of_changes_arrives_to_the_bit_and_many_changes_as_the_whole_part(dtype):
    base = random_array((3, 40, 7), dtype)
    for share in (0.0, 0.02, 0.3, 0.6, 1.0):
        new = stepped(base, share)
        changes = changes_of(new, base)
        assert isinstance(changes, ChangedElements) == (share < 0.5)
        if isinstance(changes, ChangedElements):
            assert len(changes.values) == np.count_nonzero(bits_of(new) != bits_of(base))
            assert made(changes, base).tobytes() == new.tobytes()
        else:
            assert changes.tobytes() == new.tobytes()


def test_any_number_of_runs_may_be_gathered_ahead():
    base = random_array((2051,), "bfloat16")
    new = stepped(base, 0.1)
    assert runs_of(jnp.asarray(base), np.count_nonzero(bits_of(new) != bits_of(base))) in (6, 7)
    for runs in (0, 1, 2, 30, 64):
        changes = changes_of(new, base, runs)
        assert isinstance(changes, ChangedElements)
        assert made(changes, base).tobytes() == new.tobytes()


def test_elements_of_eight_bytes_differ_in_either_word():
    with jax.enable_x64(True):
        base = np.arange(100, dtype=np.int64)
        new = base.copy()
        new[[3, 64]] = [3 + (7 << 40), 65]
        changes = changes_of(new, base)
        assert changes.mask.tolist() == [1 << 3, 0, 1, 0]
        assert changes.values.tolist() == [3 + (7 << 40), 65]
        assert made(changes, base).tobytes() == new.tobytes()


def test_of_an_unchanged_part_only_the_count_crosses(monkeypatch):
    base = random_array((3, 40, 7), "bfloat16")
    monkeypatch.setattr(device_changes, "on_host", lambda arrays: iter([*arrays, None][:-1]))
    changes = changes_of(base, base)
    assert (len(changes.values), changes.mask.any()) == (0, False)


def published(meshes, versions, *, on_device: bool):
    """Adds versions to a history, as parts of a mesh; returns all artifacts and their blocks."""
    abstract = jax.tree.map(
        lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), versions[0], meshes
    )
    manifest = plan_manifest(abstract)
    cutter = Cutter(manifest, abstract)
    history = VersionHistory("chain", 0, manifest.itemsizes)
    base, made, kinds = None, [], set()
    for number, version in enumerate(versions):
        parts = cutter.cut(jax.tree.map(jax.device_put, version, meshes))
        compares = on_device and base is not None
        changes = device_changes.device_changes(parts, base, {}) if compares else {}
        given = fetched(parts, changes)
        kinds |= {type(one) for one in given.values()}
        added = history.add(number, lambda: "digest", given)
        base = parts
        if added.delta is not None:
            blocks = added.delta.blocks([*added.delta.parts])
            made.append((added.delta, [bytes(history.payload(name)) for name in blocks]))
        full = history.full(number)
        made.append((full, [bytes(history.payload(name)) for name in full.blocks([*full.parts])]))
    history.close()
    assert (ChangedElements in kinds) == on_device
    return made


def placements(devices: int, spec: PartitionSpec):
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])

    def of(x):
        fits = np.ndim(x) == 2 and all(size % devices == 0 for size in np.shape(x))
        return NamedSharding(mesh, spec if fits else PartitionSpec())

    return of


@pytest.mark.gate
@pytest.mark.parametrize(
    "place",
    [
        placements(1, PartitionSpec()),
        placements(4, PartitionSpec("x", None)),
        placements(4, PartitionSpec(None, "x")),
    ],
    ids=["one device", "rows", "columns"],
)
def test_artifacts_are_the_same_bytes_whoever_compares(place):
    first = {
        f"{dtype}{number}": random_array(shape, dtype, number)
        for number, shape in enumerate(SHAPES)
        for dtype in DTYPES[:4]
    }
    scattered = jax.tree.map(lambda x: stepped(x, 0.03), first)
    clustered = dict(scattered)
    clustered["bfloat160"] = scattered["bfloat160"].copy()
    clustered["bfloat160"][3:9] = ml_dtypes.bfloat16(-0.0)
    everything = jax.tree.map(lambda x: stepped(x, 1.0), clustered)
    mixed = {name: stepped(x, (0.0, 0.2, 0.45)[len(name) % 3]) for name, x in everything.items()}
    versions = [first, scattered, clustered, clustered, everything, mixed, mixed]
    meshes = jax.tree.map(place, first)
    assert published(meshes, versions, on_device=True) == published(
        meshes, versions, on_device=False
    )
