"""Tokens a second of an engine with a cache in pages, beside one with a cache for each slot.

    python benchmarks/pages.py [--rounds=7] [--only=PART] [--clock=wall]

Both decode in turns with random weights of one shape (`benchmarks/peers/serving.py`), in float32,
on one CPU. The cases are those of `benchmarks/rollout.py`: 64 completions of 64 tokens, and 256 of
log-normal lengths, from prompts of 16 tokens; and groups of 8 with prompts of 200 tokens. With
pages, the cache has as many bytes as without, or a quarter of them. The figures are minimum, median
and maximum of the rounds, and the same of the ratio in each round.
"""

from __future__ import annotations

import argparse
import statistics

import jax
import numpy as np
from peers.serving import CLOCKS
from rollout import ROWS, lognormal_lengths, model_config

from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.plan.memory.model_memory import cache_bytes
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling

CASES = {
    "64 x 64 tokens": (16, 1, [64] * 64),
    "256 of a long tail": (16, 1, lognormal_lengths(256)),
    "32 groups of 8, prompts of 200": (200, 8, lognormal_lengths(32)),
}


def requests_of(case: str, seed: int) -> list[CompletionRequest]:
    """Makes the requests of a case, with new prompts for each seed."""
    prompt_tokens, completions, lengths = CASES[case]
    rng = np.random.default_rng(seed)
    return [
        CompletionRequest(
            rng.integers(2, 500, prompt_tokens).astype(np.int32),
            Sampling(length, ()),
            completions,
            (seed, number),
        )
        for number, length in enumerate(lengths)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="part of the names of the cases")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    rounds, clock = arguments.rounds, CLOCKS[arguments.clock]
    config, layout = model_config(), Layout.single()
    params = jax.block_until_ready(
        jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    )
    whole = cache_bytes(config, ROWS, config.max_length, layout)
    sides = {"for each slot": None, "in pages": whole, "in pages, a quarter": whole // 4}
    for case, (_, completions, lengths) in CASES.items():
        if arguments.only not in case:
            continue
        engines = {
            name: Engine(config, layout, EngineOptions(slots=ROWS, cache_bytes=size))
            for name, size in sides.items()
        }
        for engine in engines.values():
            engine.load(params, 0)
            engine.generate(requests_of(case, rounds))
        tokens = sum(lengths) * completions
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for seed in range(rounds):
            for name, engine in engines.items():
                asked = requests_of(case, seed)
                started = clock()
                engine.generate(asked)
                rates[name].append(tokens / (clock() - started))
        print(f"\n{case}, {tokens:,} tokens\n")
        print(
            "| cache | tokens/s | x | in use | saved by sharing | put aside |\n" + "|---" * 6 + "|"
        )
        for name, found in rates.items():
            ratios = [one / other for one, other in zip(found, rates["for each slot"], strict=True)]
            stats = engines[name].stats
            print(
                f"| {name} | {spread(found, ',.0f')} | {spread(ratios, '.2f')}"
                f" | {stats.cache_use:.2f} | {stats.cache_shared_share:.2f}"
                f" | {stats.preemptions} |",
                flush=True,
            )


def spread(values: list[float], form: str) -> str:
    """Formats minimum, median and maximum."""
    found = min(values), statistics.median(values), max(values)
    return " / ".join(format(value, form) for value in found)


if __name__ == "__main__":
    main()
