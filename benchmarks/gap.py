"""The gap between the log-probabilities of explorer and trainer, for the same weights and tokens.

    python benchmarks/gap.py [--model=PATH] [--seeds=0,1,2] [--completions=64] [--tokens=96]
        [--only=PART]

The policy is one, and the programs are two: the explorer decodes token by token with a cache, and
the trainer scores whole rows. So their numbers differ by rounding, and a method that multiplies
ratios of probabilities takes this for a change of the policy. A line of the table is one way to
decode and one to score, and has the share of tokens whose log-probabilities have the same bits, the
mean and the greatest difference, and the range of the ratio of probabilities. Without a model the
weights are random. The first line is the base, from which each other differs in what it names.

Lines with meshes are left out where there are too few devices. On CPUs there are four.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.config import AttentionPath, Experts, ModelConfig, Quantization
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.invariant import KEYS
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.quantization import quantized
from rl_sync.models.sharding import Layout, using
from rl_sync.models.transformer import init_params
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.settings.mesh_settings import ShardingSettings
from rl_sync.types import Packing, Params

PROMPT_TOKENS = 24
RANDOM = ModelConfig(
    vocab_size=512,
    embed_dim=256,
    num_layers=6,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=768,
    max_length=512,
    qk_norm=True,
)
LOGITS_BYTES = 64 << 20


class Way(NamedTuple):
    """Choices of the two programs, which decode and score tokens.

    Attributes:
      explorer_dtype, trainer_dtype: dtypes of the two programs; weights are rounded to the
        explorer's for both.
      slots: slots of the engine.
      attention: `model.attention` of the explorer.
      packed: whether the trainer has two completions in a row.
      explorer_mesh, trainer_mesh: sizes of the meshes.
      experts: whether the MLPs are mixtures of experts.
      replays: whether the trainer replays the experts that the explorer recorded.
      quantization: dtype of the explorer's kernels; None for its own. The trainer then has the
        weights that they were made from.
      cache_bytes: memory of the explorer's pages; None for a row for each slot.
    """

    explorer_dtype: str = "float32"
    trainer_dtype: str = "float32"
    slots: int = 32
    attention: AttentionPath = "auto"
    packed: bool = False
    explorer_mesh: tuple[tuple[str, int], ...] = ()
    trainer_mesh: tuple[tuple[str, int], ...] = ()
    experts: bool = False
    replays: bool = False
    quantization: Quantization | None = None
    cache_bytes: int | None = None
    batch_invariant: bool = False
    temperature: float = 1.0

    @property
    def devices(self) -> tuple[int, int]:
        """Number of devices of the two meshes."""
        sizes = ([size for _, size in mesh] for mesh in (self.explorer_mesh, self.trainer_mesh))
        explorer, trainer = map(math.prod, sizes)
        return explorer, trainer


BASE, ROUGH = Way(), Way("bfloat16", "bfloat16")
WAYS = {
    "float32": BASE,
    "1 slot": BASE._replace(slots=1),
    "8 slots": BASE._replace(slots=8),
    "plain attention": BASE._replace(attention="einsum"),
    "cache in pages": BASE._replace(cache_bytes=4 << 20),
    "packed rows": BASE._replace(packed=True),
    "trainer: fsdp 2, tensor 2": BASE._replace(trainer_mesh=(("fsdp", 2), ("tensor", 2))),
    "explorer: tensor 2": BASE._replace(explorer_mesh=(("tensor", 2),)),
    "explorer: context 4": BASE._replace(explorer_mesh=(("context", 4),)),
    "experts": BASE._replace(experts=True),
    "experts, replayed": BASE._replace(experts=True, replays=True),
    "experts, trainer: experts 4": BASE._replace(experts=True, trainer_mesh=(("experts", 4),)),
    "bfloat16": ROUGH,
    "bfloat16, 1 slot": ROUGH._replace(slots=1),
    "bfloat16, packed rows": ROUGH._replace(packed=True),
    "bfloat16, experts": ROUGH._replace(experts=True),
    "bfloat16, experts, replayed": ROUGH._replace(experts=True, replays=True),
    "explorer bfloat16, trainer float32": ROUGH._replace(trainer_dtype="float32"),
    "explorer int8, float32": BASE._replace(quantization="int8"),
    "explorer int8, bfloat16": ROUGH._replace(quantization="int8"),
    "explorer float8, bfloat16": ROUGH._replace(quantization="float8_e4m3fn"),
    **{
        f"batch-invariant: {name}": way._replace(batch_invariant=True)
        for name, way in {
            "float32": BASE,
            "1 slot": BASE._replace(slots=1),
            "8 slots": BASE._replace(slots=8),
            "temperature 0.7": BASE._replace(temperature=0.7),
            "cache in pages": BASE._replace(cache_bytes=4 << 20),
            "packed rows": BASE._replace(packed=True),
            "trainer: fsdp 2": BASE._replace(trainer_mesh=(("fsdp", 2),)),
            "trainer: data 2, fsdp 2": BASE._replace(trainer_mesh=(("data", 2), ("fsdp", 2))),
            "trainer: context 4": BASE._replace(trainer_mesh=(("context", 4),)),
            "explorer: data 2": BASE._replace(explorer_mesh=(("data", 2),)),
            "explorer: context 4": BASE._replace(explorer_mesh=(("context", 4),)),
            "both: tensor 2": BASE._replace(
                explorer_mesh=(("tensor", 2),), trainer_mesh=(("tensor", 2),)
            ),
            "trainer: tensor 2": BASE._replace(trainer_mesh=(("tensor", 2),)),
            "bfloat16": ROUGH,
            "bfloat16, 8 slots": ROUGH._replace(slots=8),
        }.items()
    },
    "float16": Way("float16", "float16"),
    "explorer float16, trainer float32": Way("float16", "float32"),
}


class Gap(NamedTuple):
    """Differences of the trainer's log-probabilities from the explorer's.

    Attributes:
      equal: share of tokens with the same bits.
      mean, greatest: absolute difference, in nats.
      least_ratio, greatest_ratio: ratio of probabilities.
    """

    equal: float
    mean: float
    greatest: float
    least_ratio: float
    greatest_ratio: float


def gap_of(way: Way, given: tuple[ModelConfig, Params], seed: int, count: int, tokens: int) -> Gap:
    """Decodes completions, scores them, and compares.

    Args:
      given: model config, and its weights in float32.
      count: number of completions.
      tokens: tokens of each.
    """
    config, params = given
    held = jax.tree.map(lambda x: x.astype(way.explorer_dtype), params)
    config = dataclasses.replace(config, batch_invariant=way.batch_invariant)
    explorer = dataclasses.replace(config, dtype=way.explorer_dtype, attention=way.attention)
    trainer = dataclasses.replace(config, dtype=way.trainer_dtype)
    rng = np.random.default_rng(seed)
    prompts = rng.integers(2, config.vocab_size, (count, PROMPT_TOKENS)).astype(np.int32)
    if way.quantization is not None:
        explorer = dataclasses.replace(explorer, quantization=way.quantization)
        params = quantized(explorer, params)
    found = decoded(
        explorer,
        params,
        layout_of(way.explorer_mesh, generates=True),
        prompts,
        slots=way.slots,
        tokens=tokens,
        seed=seed,
        records_routes=way.replays,
        cache_bytes=way.cache_bytes,
        temperature=way.temperature,
    )
    rows = np.stack(
        [np.concatenate([a, one.tokens]) for a, one in zip(prompts, found, strict=True)]
    )
    routes = routes_of(config, found, rows) if way.replays else None
    scores = scored(
        Forward(trainer, way.temperature, LOGITS_BYTES),
        held,
        layout_of(way.trainer_mesh),
        rows,
        way.packed,
        routes,
    )
    theirs = scores[:, PROMPT_TOKENS:]
    ours = np.stack([one.logprobs for one in found])
    difference = theirs.astype(np.float64) - ours
    return Gap(
        float(np.mean(theirs == ours)),
        float(np.abs(difference).mean()),
        float(np.abs(difference).max()),
        float(np.exp(difference.min())),
        float(np.exp(difference.max())),
    )


def layout_of(mesh: tuple[tuple[str, int], ...], generates: bool = False) -> Layout:
    """Returns the layout of a mesh on this machine's devices."""
    sharding = ShardingSettings()
    rules = sharding.engine_rules if generates else sharding.rules
    return Layout(MeshShape(**dict(mesh)).mesh(jax.devices()), rules)


def placed(config: ModelConfig, params: Params, layout: Layout, dtype: str) -> Params:
    """Puts weights on a mesh, in a dtype."""
    like = cast_abstract(abstract_params(config, layout), dtype)
    return jax.tree.map(
        lambda x, one: jax.device_put(x.astype(one.dtype), one.sharding), params, like
    )


def decoded(
    config: ModelConfig,
    params: Params,
    layout: Layout,
    prompts: np.ndarray,
    slots: int,
    tokens: int,
    seed: int,
    records_routes: bool,
    cache_bytes: int | None = None,
    temperature: float = 1.0,
) -> Sequence[FinishedCompletion]:
    """Samples a completion of each prompt."""
    engine = Engine(
        config,
        layout,
        EngineOptions(slots=slots, records_routes=records_routes, cache_bytes=cache_bytes),
    )
    engine.load(placed(config, params, layout, config.dtype), 0)
    requests = [
        CompletionRequest(
            prompt, Sampling(tokens, (), temperature=temperature), seed=(seed, number)
        )
        for number, prompt in enumerate(prompts)
    ]
    return [one for (one,) in engine.generate(requests)]


def routes_of(
    config: ModelConfig, found: Sequence[FinishedCompletion], rows: np.ndarray
) -> np.ndarray:
    """Returns the recorded experts of the tokens of rows."""
    assert config.routes is not None
    routes = config.routes.unrecorded(*rows.shape)
    for row, one in zip(routes, found, strict=True):
        assert one.routes is not None
        one.routes.write(row)
    return routes


def scored(
    forward: Forward,
    params: Params,
    layout: Layout,
    rows: np.ndarray,
    packed: bool,
    routes: np.ndarray | None,
) -> np.ndarray:
    """Computes the trainer's log-probability of each token of the rows."""
    config = forward.model
    layout = layout.grouped(config.num_kv_heads)
    weights = placed(config, params, layout, "float32")
    width, given, packing = rows.shape[1], rows, None
    if packed:
        more = -width % KEYS if config.batch_invariant else 0
        rows = np.pad(rows, ((0, 0), (0, more)))
        given = rows.reshape(len(rows) // 2, -1)
        positions = np.broadcast_to(np.arange(rows.shape[1]), rows.shape).reshape(given.shape)
        numbers = np.repeat(np.arange(len(rows)), rows.shape[1]).reshape(given.shape)
        packing = Packing(jnp.asarray(positions), jnp.asarray(numbers))
    with using(layout):
        score = jax.jit(forward.logprobs, static_argnums=())
        experts = None if routes is None else jnp.asarray(routes)
        found = score(weights, {}, RowInputs(jnp.asarray(given), packing, routes=experts))
    return np.asarray(jax.device_get(found)).reshape(rows.shape)[:, :width]


@functools.cache
def policy(path: str | None, seed: int, experts: bool) -> tuple[ModelConfig, Params]:
    """Returns the model and its weights in float32."""
    if path is None:
        config = RANDOM
        if experts:
            config = dataclasses.replace(config, experts=Experts(16, 4, 192))
        return config, jax.jit(init_params, static_argnums=0)(config, jax.random.key(seed))
    config = dataclasses.replace(load_config(Path(path)), max_length=RANDOM.max_length)
    return config, load_params(Path(path), config, abstract_params(config, Layout.single()))


def report(name: str, gaps: Sequence[Gap]) -> str:
    """Writes a line of the table: minimum, median and maximum of the seeds."""

    def spread(values: Sequence[float], form: str) -> str:
        shown = (min(values), statistics.median(values), max(values))
        return " / ".join(format(value, form) for value in shown)

    columns: list[Any] = [
        spread([100 * one.equal for one in gaps], ".1f"),
        spread([one.mean for one in gaps], ".1e"),
        spread([one.greatest for one in gaps], ".1e"),
        f"{min(one.least_ratio for one in gaps):.5f} to"
        f" {max(one.greatest_ratio for one in gaps):.5f}",
    ]
    return f"| {name} | " + " | ".join(columns) + " |"


def main() -> None:
    """Prints the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory of a checkpoint; random weights if left out")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96, help="of each completion")
    parser.add_argument("--only", default="", help="part of the names of the lines")
    arguments = parser.parse_args()
    seeds = [int(one) for one in arguments.seeds.split(",")]
    print(
        "| | same bits, % | mean gap, nats | greatest gap, nats | ratios |\n|---|---|---|---|---|"
    )
    for name, way in WAYS.items():
        if arguments.only not in name or (arguments.model and way.experts):
            continue
        if max(way.devices) > jax.device_count():
            continue
        gaps = [
            gap_of(
                way,
                policy(arguments.model, seed, way.experts),
                seed,
                arguments.completions,
                arguments.tokens,
            )
            for seed in seeds
        ]
        print(report(name, gaps), flush=True)


if __name__ == "__main__":
    main()
