"""The comparison of versions on devices, compiled for GPUs: one pass over the weights."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.weights.deltas.device_changes import _compared, _gathered


@pytest.mark.aot
@pytest.mark.parametrize("shape", [(24, 1024, 4096), (5, 1001, 3003)], ids=["even", "odd"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("chips", ["h100:1", "t4:1"])
def test_only_one_operation_reads_both_versions_and_none_makes_an_array_as_large(
    devices, chips, dtype, shape
):
    here = SingleDeviceSharding(devices(chips)[0])
    part = jax.ShapeDtypeStruct(shape, dtype, sharding=here)
    compared = _compared.lower(part, part).compile()
    words, ends, _ = (
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
        for x in jax.eval_shape(_compared, part, part)
    )
    first = jax.ShapeDtypeStruct((), jnp.int32, sharding=here)
    run = part.size // 64
    gathered = _gathered.lower(part, words, ends, first, length=run).compile()
    weights = f"[{','.join(map(str, shape))}]"
    for compiled, numbers in ((compared, words.size), (gathered, run)):
        read = CompiledProgramText.of(compiled)
        own = [one for one in read.operations if not one.fused]
        inputs = [one.name for one in own if one.kind == "parameter" and weights in one.line]
        readers = [
            one.name
            for one in own
            if any(f"%{name}" in one.line.partition("=")[2] for name in inputs)
        ]
        assert len(readers) == 1, readers
        assert not read.made(4 * numbers + 1)
        assert read.memory.temporaries < 24 * numbers
