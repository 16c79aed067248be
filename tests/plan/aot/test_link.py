"""The collective transfer of weights, compiled for accelerators."""

import re

import jax
import pytest

from rl_sync.models.config import ModelConfig
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.weights.link import Link
from tests.models.meshes import RULES

MODEL = ModelConfig(
    vocab_size=64_000,
    embed_dim=2048,
    num_layers=4,
    num_heads=16,
    num_kv_heads=4,
    head_dim=128,
    mlp_dim=8192,
    max_length=256,
    tie_embeddings=False,
    dtype="bfloat16",
)
BUCKET_BYTES = 32 * 2**20
ROUTES = re.compile(r"source_target_pairs=\{(\{.*?\})\}")


def _link(devices: list[jax.Device], source: MeshShape, target: MeshShape) -> Link:
    sides = [
        cast_abstract(abstract_params(MODEL, Layout(shape.mesh(on), RULES)), "bfloat16")
        for shape, on in (
            (source, devices[: source.devices]),
            (target, devices[source.devices :][: target.devices]),
        )
    ]
    return Link(*sides, BUCKET_BYTES)


@pytest.mark.aot
@pytest.mark.parametrize(
    ("chips", "source", "target", "programs", "waves"),
    [
        ("v5e:4x4", MeshShape(fsdp=8), MeshShape(data=2, tensor=4), 4, 8),
        ("v5e:4x4", MeshShape(fsdp=4, tensor=2), MeshShape(data=2, tensor=4), 5, 9),
        ("h100:8", MeshShape(fsdp=4), MeshShape(tensor=4), 6, 4),
    ],
)
def test_a_few_programs_move_everything_in_buckets(devices, chips, source, target, programs, waves):
    link = _link(devices(chips), source, target)
    compiled = [CompiledProgramText.of(lowered.compile()) for lowered in link.lower()]
    assert len(compiled) == link._plan.programs == programs
    routes = {wave for read in compiled for wave in ROUTES.findall(read.text)}
    assert len(routes) == waves
    sent = [read.memory.outputs for read in compiled]
    assert BUCKET_BYTES // 8 < max(sent) <= BUCKET_BYTES // 3
    for read in compiled:
        use = read.memory
        assert use.arguments + use.temporaries + use.outputs <= BUCKET_BYTES + 2**20
