"""Links within a process: refusals, bits, programs and bytes.

`test_collective.py` tests transfers between processes.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.models.mesh_shape import MeshShape
from rl_sync.weights.link import Link, viewed, wire_dtype
from tests.transfers.cluster_process import live_bytes
from tests.weights.test_assembly import DTYPES, random_bits


def abstract(devices: slice, shape=(4, 6), dtype=jnp.float32, name="w") -> dict:
    mesh = MeshShape(fsdp=len(jax.devices()[devices])).mesh(jax.devices()[devices])
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)}


def test_the_two_sides_have_no_device_in_common():
    with pytest.raises(ValueError, match="without a common device"):
        Link(abstract(slice(0, 2)), abstract(slice(1, 3)))


def test_parameters_of_another_model_are_refused_by_name():
    source = abstract(slice(0, 2))
    with pytest.raises(ValueError, match=r"\['w'\] is float32\[8, 6\].*float32\[4, 6\]"):
        Link(source, abstract(slice(2, 4), (8, 6)))
    with pytest.raises(ValueError, match=r"\['w'\] is bfloat16\[4, 6\].*float32\[4, 6\]"):
        Link(source, abstract(slice(2, 4), dtype=jnp.bfloat16))
    with pytest.raises(ValueError, match="structure"):
        Link(source, abstract(slice(2, 4), name="v"))
    with pytest.raises(ValueError, match=r"\['w'\] is float32\[8\]"):
        Link(source, abstract(slice(2, 4))).send({"w": jnp.zeros(8)})


def test_a_dtype_without_plain_bits_is_refused_when_planned():
    with pytest.raises(TypeError, match=r"\['w'\] has dtype"):
        Link(abstract(slice(0, 2), dtype=jnp.complex64), abstract(slice(2, 4), dtype=jnp.complex64))


CUTS = {"a": (None, "fsdp", "tensor"), "b": ("tensor", "fsdp"), "n": (None, "fsdp")}
BUCKET_BYTES = 16384


def values() -> dict[str, np.ndarray]:
    """Makes parameters of random bits, so with NaNs with payloads."""
    kinds = {
        "a": (28, 24, 48, jnp.bfloat16),
        "b": (66, 96, jnp.float32),
        "c": (66, 96, jnp.float32),
        "n": (28, 18, jnp.bfloat16),
        "s": (jnp.int32,),
        "m": (13, jnp.bool_),
    }
    return {
        name: np.asarray(random_bits(seed, shape, dtype))
        for seed, (name, (*shape, dtype)) in enumerate(kinds.items())
    }


def shardings(sizes: dict[str, int], devices: list[jax.Device]) -> dict:
    mesh = MeshShape(**sizes).mesh(devices)
    return {name: NamedSharding(mesh, PartitionSpec(*CUTS.get(name, ()))) for name in "abcmns"}


def linked(source: dict, target: dict, bucket_bytes: int = BUCKET_BYTES) -> tuple[Link, dict]:
    """Returns a link between two meshes of this process, and parameters on the first one."""
    sides = MeshShape(**source).devices, MeshShape(**target).devices
    here = shardings(source, jax.devices()[: sides[0]])
    there = shardings(target, jax.devices()[-sides[1] :])
    params = jax.device_put(values(), here)
    abstract = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there[name])
        for name, x in params.items()
    }
    return Link(params, abstract, bucket_bytes), params


def carry(link: Link, params: dict) -> dict:
    """Plays both sides of a link at once."""
    return jax.block_until_ready(link._received(link._shards(params)))


@contextlib.contextmanager
def compilations():
    """Yields the list of the functions that are compiled meanwhile."""
    compiled: list[str] = []

    def count(event: str, _: float, **details) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(count)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(count)


@pytest.mark.parametrize(
    ("source", "target", "bucket_bytes", "programs"),
    [
        ({"fsdp": 2}, {"tensor": 2}, BUCKET_BYTES, 5),
        pytest.param({"fsdp": 3}, {}, BUCKET_BYTES, 5, marks=pytest.mark.gate),
        # In one turn.
        pytest.param({"data": 2}, {"tensor": 2}, 10**7, 1, marks=pytest.mark.gate),
        ({"fsdp": 2}, {"fsdp": 2}, 240_000, 1),  # Whole shards, which the sender keeps.
    ],
)
def test_parameters_arrive_to_the_bit_by_just_the_planned_programs(
    source, target, bucket_bytes, programs
):
    link, params = linked(source, target, bucket_bytes)
    jax.clear_caches()
    with compilations() as compiled:
        arrived = carry(link, params)
    assert compiled.count("jit(move)") == len(link.lower()) == link._plan.programs == programs
    for name, value in values().items():
        assert arrived[name].sharding == link._target[name].sharding
        for array in (arrived[name], params[name]):  # The sender keeps its own.
            assert np.asarray(array).tobytes() == value.tobytes()
    with compilations() as compiled:
        carry(link, params)
    assert compiled == []


@pytest.mark.gate
def test_no_device_holds_more_than_a_bucket_besides_the_weights():
    link, params = linked({"fsdp": 2}, {"tensor": 2})
    arrived, peaks = carry(link, params), []

    def watched(mover):
        def move(load, wave):
            moved = mover(load, wave)
            peaks.append(live_bytes())
            return moved

        return move

    link._movers = [watched(mover) for mover in link._movers]
    before = live_bytes()
    del arrived
    again = carry(link, params)
    assert 0.4 * BUCKET_BYTES < (max(peaks) - before) / len(jax.devices()) <= BUCKET_BYTES
    assert live_bytes() == before
    del again


@pytest.mark.gate
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_floats_of_less_than_32_bits_are_sent_as_integers_and_only_between_cpus(dtype):
    dtype = np.dtype(dtype)
    narrow = dtype in (jnp.bfloat16, jnp.float16)
    assert wire_dtype(dtype, "cpu") == (np.dtype(np.uint16) if narrow else dtype)
    assert wire_dtype(dtype, "gpu") == dtype
    array = random_bits(0, (6, 8), dtype)
    there = viewed(array, wire_dtype(dtype, "cpu"))
    assert np.asarray(viewed(there, dtype)).tobytes() == np.asarray(array).tobytes()
