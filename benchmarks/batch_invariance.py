"""What `model.batch_invariant` rests on, what it costs, and whether it holds in long runs.

    python benchmarks/batch_invariance.py kernels [--sizes=13]
    python benchmarks/batch_invariance.py cost [--rounds=7] [--slots=4,16,32,64]
    python benchmarks/batch_invariance.py runs [--seeds=300:302] [--steps=60] [--into=runs/gap]
        [--set=SETTING=VALUE ...]

`kernels` compares the rows of products and sums of many sizes, and counts the sizes at which some
row has other bits if there are more rows: in the sizes that the setting uses, and in smaller ones.
`cost` times decoding and a gradient in turns, with and without the setting. `runs` trains
`configs/arithmetic.py` asynchronously, with weights that are swapped in flight, packed rows, and
meshes that differ by seed, and counts the tokens whose log-probabilities the trainer found equal
to the bit, by the versions that drew them (`rollout.score=trainer`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")

import gap
import jax
import jax.numpy as jnp
import numpy as np
import seeds

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models import invariant
from rl_sync.models.sharding import Layout
from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.workdir import Workdir

WIDTHS = (16, 48, 64, 100, 128, 200, 256, 384, 576, 896, 1536, 2048, 4096)
OUTPUTS = (16, 33, 64, 100, 192, 256, 576, 768, 1000, 1536, 4096, 16384)
MANY = 1024
ROUNDS_ROWS = (64, 65, 96, 128, 200, 500)
FEW_ROWS = (1, 2, 4, 8, 16, 32)
TOKENS = 96
MESHES = (
    ("trainer.mesh.fsdp=2", "explorer.mesh.data=2"),
    ("trainer.mesh.context=2", "explorer.mesh.data=2"),
    ("trainer.mesh.data=2",),
)
SETTINGS = (
    "model.batch_invariant=true",
    "rollout.score=trainer",
    "sync.mode=asynchronous",
    "sync.transfer=checkpoint",
    "sync.max_staleness=4",
    "rollout.swap=in_flight",
    "rollout.cache=recompute",
    "rollout.streaming=true",
    "rollout.slots=16",
    "rollout.chunk_tokens=4",
    "rollout.min_new_tokens=60",
    "task.max_completion_tokens=96",
    "task.reward=length_band(greatest=62, margin=30)",
    "trainer.batching=packed",
    "trainer.groups_per_step=24",
    "algorithm.name=grpo",
    "algorithm.over_sampling=1.0",
    "algorithm.keep=first",
    "evaluation.every_steps=0",
    "sft.steps=20",
)


def kernels(sizes: int) -> None:
    """Prints the shares of sizes at which rows depend on the number of rows.

    Args:
      sizes: number of widths, and of numbers of outputs.
    """
    widths, outputs = WIDTHS[:sizes], OUTPUTS[:sizes]

    def differs(
        function: Callable[..., jax.Array], rows: tuple[int, ...], *given: jax.Array
    ) -> bool:
        compiled = jax.jit(function)
        whole = np.asarray(compiled(*given))
        return any(
            (np.asarray(compiled(given[0][:count], *given[1:])) != whole[:count]).any()
            for count in rows
        )

    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def sums(x: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(x).sum(axis=-1)

    print("| rows | products, % of sizes | sums, % of sizes |\n|---|---|---|")
    for name, rows in (("64 to 500", ROUNDS_ROWS), ("1 to 32", FEW_ROWS)):
        products = [
            differs(jnp.matmul, rows, drawn(MANY, width), drawn(width, out))
            for width, out in itertools.product(widths, outputs)
        ]
        summed = []
        for width in widths:
            least = -(-invariant.LEAST_NUMBERS // width) if rows is ROUNDS_ROWS else 0
            counts = tuple(max(count, least) for count in rows)
            summed.append(differs(sums, counts, drawn(max(MANY, 2 * least), width)))
        shares = [f"{100 * np.mean(found):.1f}" for found in (products, summed)]
        print(f"| {name} | " + " | ".join(shares) + " |", flush=True)


def cost(rounds: int, numbers: list[int]) -> None:
    """Prints how much longer decoding and a gradient take with the setting."""
    print("| | time with / without: least / median / greatest of the rounds |\n|---|---|")
    config, params = gap.policy(None, 0, experts=False)
    both = [dataclasses.replace(config, batch_invariant=on) for on in (False, True)]
    rows = np.random.default_rng(0).integers(2, config.vocab_size, (32, 256)).astype(np.int32)

    def decode(slots: int) -> list[Callable[[], object]]:
        engines = [Engine(one, Layout.single(), EngineOptions(slots=slots)) for one in both]
        for engine in engines:
            engine.load(params, 0)
        asked = [
            CompletionRequest(row[:24], Sampling(TOKENS, ()), seed=(i,))
            for i, row in enumerate(rows[:slots])
        ]
        return [functools.partial(engine.generate, asked) for engine in engines]

    def train() -> list[Callable[[], object]]:
        def gradient(one: Forward) -> Callable[[], object]:
            loss = jax.jit(
                jax.grad(
                    lambda params: one.logprobs(params, {}, RowInputs(jnp.asarray(rows))).sum()
                )
            )
            return lambda: jax.block_until_ready(loss(params))

        return [gradient(Forward(one, 1.0, gap.LOGITS_BYTES)) for one in both]

    cases = {f"decoding, {slots} slots": decode(slots) for slots in numbers}
    for name, pair in (cases | {"gradient, 32 rows of 256": train()}).items():
        for call in pair:
            call()
        ratios = []
        for _ in range(rounds):
            secs = []
            for call in pair:
                start = time.perf_counter()
                call()
                secs.append(time.perf_counter() - start)
            ratios.append(secs[1] / secs[0])
        print(
            f"| {name} | {min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f} |",
            flush=True,
        )


def runs(numbers: list[int], steps: int, into: Path, more: list[str]) -> None:
    """Makes a run for each seed, and counts tokens."""
    print(
        "| seed, meshes | tokens | in completions of several versions | greatest mismatch, nats |"
    )
    print("|---|---|---|---|", flush=True)
    for seed, meshes in zip(numbers, itertools.cycle(MESHES)):
        workdir = Workdir(into / str(seed))
        given = (*SETTINGS, *meshes, f"trainer.steps={steps}", f"seed={seed}", *more)
        if not workdir.metrics.exists():
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "launcher",
                    "--config=configs/arithmetic.py",
                    f"--config.workdir={workdir.path}",
                    *(f"--config.{setting}" for setting in given),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
            )
        tokens = swapped = 0
        for one in read_rollouts(workdir):
            tokens += one.drawn_tokens
            swapped += one.drawn_tokens if len(one.versions) > 1 else 0
        mismatch = max(line["mismatch"] for line in read_metrics(workdir, "rl"))
        print(
            f"| {seed}, {', '.join(meshes)} | {tokens:,} | {swapped:,} | {mismatch:g} |", flush=True
        )


def main() -> None:
    """Runs the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("kernels", "cost", "runs"))
    parser.add_argument("--sizes", type=int, default=len(WIDTHS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slots", type=seeds.seeds_of, default=[4, 16, 32, 64])
    parser.add_argument("--seeds", type=seeds.seeds_of, default=seeds.seeds_of("300:302"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--into", type=Path, default=Path("runs/gap"))
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    if given.part == "kernels":
        kernels(given.sizes)
    elif given.part == "cost":
        cost(given.rounds, given.slots)
    else:
        runs(given.seeds, given.steps, given.into, given.set)


if __name__ == "__main__":
    main()
