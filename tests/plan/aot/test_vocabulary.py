"""The vocabulary matrix, in gradients compiled for accelerators."""

import math

import jax
import jax.numpy as jnp
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.microbatches import gradient
from rl_sync.models.config import ModelConfig
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, constrain_like, shardings
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.plan.compiled_text import CompiledProgramText
from tests.models.meshes import RULES

V, D = 32_000, 128
ROWS, MICROBATCH_ROWS, TOKENS = 16, 8, 256
CASES = [
    ("v5e:2x2", MeshShape(fsdp=2, tensor=2), False),
    ("h100:4", MeshShape(fsdp=2, tensor=2), True),
    ("v5e:2x2", MeshShape(fsdp=4), True),
    ("v5e:2x2", MeshShape(data=2, fsdp=2), True),
    ("h100:4", MeshShape(fsdp=4), False),
]
OF_THE_GATE = 2


def _gradient(on: Layout, tied: bool) -> CompiledProgramText:
    """Compiles the gradient of a loss on log-probabilities and entropies, by microbatches."""
    model = ModelConfig(
        V, D, 2, 4, 2, 32, 256, TOKENS, tie_embeddings=tied, dtype="bfloat16", remat="full"
    )
    forward, abstract = Forward(model, 1.0, 1 << 22), abstract_params(model, on)

    def loss(params, tokens):
        found = forward.outputs(constrain_like(params, abstract), None, {}, RowInputs(tokens))
        return (found.logprobs.sum() + 0.1 * found.entropy.sum()), ({}, None)

    def by_params(params, tokens):
        return gradient(loss, params, tokens, MICROBATCH_ROWS)[0]

    tokens = on.abstract(jax.ShapeDtypeStruct((ROWS, TOKENS), jnp.int32), ("batch",))
    platform = on.mesh.devices.flat[0].platform
    with compiling_for("tpu" if platform == "tpu" else "gpu"), using(on):
        step = jax.jit(by_params, out_shardings=shardings(abstract))
        return CompiledProgramText.of(step.lower(abstract, tokens).compile())


def _elements(one):
    return max(math.prod(shape.sizes) for shape in one.shapes)


@pytest.mark.aot
@pytest.mark.parametrize(
    ("name", "mesh", "tied"),
    [
        pytest.param(*case, marks=[pytest.mark.nightly] * (number >= OF_THE_GATE))
        for number, case in enumerate(CASES)
    ],
    ids=[f"{n}, {m}" for n, m, _ in CASES],
)
def test_the_vocabulary_matrix_is_exchanged_in_blocks_and_its_gradient_in_shards(
    devices, name, mesh, tied
):
    read = _gradient(Layout(mesh.mesh(devices(name)), RULES), tied)
    own = V * D // (mesh.fsdp * mesh.tensor)
    sizes = {
        kind: max((_elements(one) for one in read.collectives if one.kind == kind), default=0)
        for kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
    }
    # A block is a sixteenth of a matrix that is not sharded by `tensor`.
    assert sizes["all-gather"] <= V * D // 8
    # `reduce-scatter` of a block, in the shapes of its result or of what goes in.
    assert sizes["reduce-scatter"] <= V * D // 8
    assert sizes["all-reduce"] <= (own if mesh.data > 1 else V * D // 8)
    assert sizes["all-to-all"] <= V * D // 8
    blocks = [one for one in read.collectives if len(one.loops) > 1 and one.kind == "all-gather"]
    assert any(one.asynchronous for one in blocks)
