"""A chunk of decode steps as TPUs and GPUs run it: what it copies, holds and sends."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from rl_sync.configs import base
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.lowered_programs import layout_on, rollout_programs
from rl_sync.plan.memory.explorer_memory import decode_estimate
from rl_sync.settings.config_reading import read_settings

pytestmark = pytest.mark.aot

ROWS, TOKENS, VOCAB, LAYERS = 32, 1024, 32_000, 24


class Compiled(NamedTuple):
    """A program, its estimated bytes, and those that a device has of a stack of kernels, of keys,
    of logits, and of the pages that a GPU gathers of one layer.

    Attributes:
      divided: whether devices divide the cache of a kv head.
      updates: number of places where the program updates keys: one of each layer if it is unrolled.
      fed: number of tokens of a row that a step feeds, each of which is written by itself.
    """

    program: CompiledProgramText
    planned: int
    gate_up: int
    keys: int
    logits: int
    gathered: int
    divided: bool
    updates: int
    fed: int


def _compiled(devices, data, tensor, share, speculation="off", **sizes):
    """Compiles decoding; a share of the usual cache is a pool of pages, 0 stands for no pages."""
    heads = max(1, sizes["num_kv_heads"] // tensor)
    shares = max(1, tensor // sizes["num_kv_heads"])
    keys = 2 * LAYERS * ROWS * TOKENS * heads * sizes["head_dim"] // data // shares
    config = base.get_config()
    config.model.update(sizes, num_layers=LAYERS, dtype="bfloat16", tie_embeddings=True)
    config.sft.steps = 0
    config.explorer.mesh.update(data=data, tensor=tensor)
    config.workdir = "/nowhere"
    config.rollout.slots, config.rollout.speculation = ROWS, speculation
    config.rollout.cache_bytes = round(2 * share * keys) or None
    settings = read_settings(config.to_dict())
    tokenizer = SimpleNamespace(vocab_size=VOCAB, eos_ids=(0,), end_ids=(0,), decode=None)
    half = TOKENS // 2
    task = SimpleNamespace(
        reward="math",
        processor=None,
        tokenizer=tokenizer,
        row_tokens=TOKENS,
        max_completion_tokens=half,
        max_drawn_tokens=half,
    )
    layout = layout_on(settings, "explorer", devices)
    (decode,) = (
        program
        for program in rollout_programs(settings, task, layout, rows=ROWS)
        if program.name == "decode"
    )
    platform = "tpu" if devices[0].platform == "tpu" else "gpu"
    return Compiled(
        CompiledProgramText.of(decode.compile()),
        decode_estimate(settings, task, platform, decode.sizes).peak,
        gate_up=2 * LAYERS * sizes["embed_dim"] * 2 * sizes["mlp_dim"] // tensor,
        keys=round(keys * share) or keys,
        logits=4 * ROWS * VOCAB * settings.rollout.step_tokens // data,
        gathered=2 * keys // LAYERS if share and platform == "gpu" and shares > 1 else 0,
        divided=shares > 1,
        updates=LAYERS if platform == "gpu" else 1,
        fed=settings.rollout.step_tokens,
    )


@pytest.fixture(
    scope="module",
    params=[
        *[
            (target, share, "off")
            for target in (
                ("v5e:2x2", 2, 2, 4, 64),
                ("v5e:2x2", 1, 4, 2, 128),
                ("h100:4", 1, 4, 2, 128),
            )
            for share in (0, 0.5)
        ],
        (("v5e:2x2", 1, 4, 4, 128), 0.5, "off"),
        (("v5e:2x2", 2, 2, 4, 64), 0, "always"),
        (("v5e:2x2", 1, 4, 4, 128), 0.5, "always"),
        (("h100:4", 1, 4, 2, 128), 0.5, "always"),
        (("h100:4", 2, 2, 2, 128), 0, "off"),
        (("h100:4", 2, 2, 2, 128), 0.5, "off"),
    ],
    ids=[
        "v5e",
        "v5e gathers pages",
        "v5e divides a cache",
        "v5e divides pages",
        "h100",
        "h100 gathers pages",
        "v5e reads pages by a kernel",
        "v5e drafts",
        "v5e drafts, and reads pages by a kernel",
        "h100 drafts, and gathers pages",
        "h100 by a kernel",
        "h100 reads pages by a kernel",
    ],
)
def decode(request, devices):
    """A TPU has two kv heads, half as wide as its lines. Of the GPUs two share each kv head, and
    divide its cache; so do TPUs of other programs.

    A kernel of TPUs reads pages of heads that are as wide as a TPU's lines, and one of GPUs reads
    caches that no devices divide.
    """
    (target, data, tensor, kv_heads, head_dim), share, speculation = request.param
    return _compiled(
        devices(target),
        data,
        tensor,
        share,
        speculation,
        embed_dim=1024,
        num_heads=8,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_dim=4096,
    )


def test_it_copies_neither_the_cache_nor_the_weights(decode):
    least = min(decode.gate_up, decode.keys)
    assert all(one.loops for one in decode.program.made(least))
    # In the loops the cache is updated where it is, and nothing else is as large.
    found = decode.program.made(least)
    assert all(one.in_place for one in found)
    # Values have an array of their own, or lie between the keys.
    each = [shape.bytes for one in found for shape in one.shapes if shape.bytes >= least]
    updates = decode.updates * decode.fed
    assert each in ([decode.keys] * 2 * updates, [2 * decode.keys] * updates)
    memory = decode.program.memory
    assert memory.aliased >= 2 * decode.keys
    workspace = 0 if decode.updates == 1 else 32 << 20  # Of cuBLAS, on a GPU.
    assert memory.temporaries < 0.05 * memory.arguments + decode.gathered + workspace


def test_its_memory_is_that_estimated_from_shapes(decode):
    assert decode.planned == pytest.approx(decode.program.memory.peak, rel=0.1)


def test_devices_exchange_sums_in_layers_and_never_the_logits_of_all_rows(decode):
    program = decode.program
    assert any(one.kind == "all-to-all" for one in program.collectives)
    assert all(one.bytes < decode.logits for one in program.collectives)
    exchanges = {"all-gather", "all-to-all"} if decode.divided else set()
    if decode.updates == 1:
        layers = [one for one in program.collectives if len(one.loops) == 2]
        assert {one.kind for one in layers} == {"all-reduce"} | exchanges
    else:
        kinds = [one.kind for one in program.collectives if one.loops]
        assert kinds.count("all-reduce") >= 2 * LAYERS
        assert all(kinds.count(kind) >= LAYERS for kind in exchanges)
    whole = [
        shape
        for one in program.operations
        for shape in one.shapes
        if shape.dtype == "f32" and math.prod(shape.sizes) >= decode.logits // 4
    ]
    assert not whole
