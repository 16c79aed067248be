"""Tokens a second of our rollout engine, Tunix's sampler, and transformers on torch.

    python benchmarks/rollout.py [--rounds=5] [--only=PART] [--clock=wall]

All sides decode in turns with random weights of one shape (`benchmarks/peers/serving.py`), in
float32, from prompts of 16 tokens. The first case is 64 completions of 64 tokens each. The second
case is 256 completions of log-normal lengths, 8 to 256, with 64 in flight at a time. The peers take
these in batches of 64, each as long as its longest completion; tokens beyond a completion's length
are not counted. Tunix reserves a cache for every row, by default of 1024 slots: both that and one
of the needed size are measured. Peers run in environments of their own, and are left out if these
cannot be made.

Every figure is the best of several rounds. The first call includes compilation.

`--clock=cpu` counts the CPU seconds of a process, which hardly depend on other load. With
`JAX_COMPILATION_CACHE_DIR` and `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0` in the environment,
all sides with JAX keep their compiled programs, and first calls of later runs read them.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
from typing import Any

import jax
import numpy as np
from peers.asking import Ask, Peer, PeerRequest, in_turns, timed
from peers.serving import CLOCKS, SHAPE, prompts_of

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.rollout import engine as engines
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling

PROMPT_TOKENS, ROWS = 16, 64


def lognormal_lengths(count: int) -> list[int]:
    """Draws completion lengths with a long tail: median 40, 8 to 256."""
    rng = random.Random(0)
    drawn = [round(math.exp(rng.gauss(math.log(40), 0.9))) for _ in range(count)]
    return [min(256, max(8, length)) for length in drawn]


CASES = {
    "64 x 64 tokens": ([64] * 64, {"Tunix": 80, "Tunix, cache 1024": 1024, "transformers": 0}),
    "256 of a long tail": (
        lognormal_lengths(256),
        {"Tunix": 272, "Tunix, cache 1024": 1024, "transformers": 0},
    ),
}


def model_config(**changes: Any) -> ModelConfig:
    """Returns the config of the model that all sides have."""
    return ModelConfig(*SHAPE, max_length=1024, qk_norm=True, **changes)


@functools.cache
def engine() -> engines.Engine:
    """Makes our engine, with random weights."""
    config = model_config()
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    made = engines.Engine(config, Layout.single(), EngineOptions(slots=ROWS))
    made.load(jax.block_until_ready(params), 0)
    return made


def ours(request: PeerRequest) -> float:
    """Completes the request's prompts with our engine, each to its length."""
    requests = [
        CompletionRequest(
            np.array(prompt, np.int32), Sampling(length, ()), seed=(request["seed"], i)
        )
        for i, (prompt, length) in enumerate(
            zip(prompts_of(request), request["lengths"], strict=True)
        )
    ]
    return timed(request, lambda: engine().generate(requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--only", default="", help="part of the names of the cases")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    rounds, clock = arguments.rounds, arguments.clock
    engine()
    for case, (lengths, caches) in CASES.items():
        if arguments.only not in case:
            continue
        # A new process for each side and case, since first calls compile.
        peers = {
            name: Peer(name, "tunix_peer.py" if name.startswith("Tunix") else "torch_peer.py")
            for name in caches
        }
        request = {
            "action": "rollout", "prompt_tokens": PROMPT_TOKENS, "lengths": lengths, "rows": ROWS,
            "clock": clock,
        }  # fmt: skip
        sides: dict[str, tuple[Ask, PeerRequest]] = {"rl_sync": (ours, request)}
        for name, peer in peers.items():
            sides[name] = (peer.ask, {**request, "cache_tokens": caches[name]})
        for peer in peers.values():
            peer.await_imports()
        measured = in_turns(sides, rounds)
        for peer in peers.values():
            peer.close()
        print(f"\n{case}, {sum(lengths):,} tokens\n")
        print("| | tokens/s | rl_sync is | first call, s |\n|---|---|---|---|")
        for name, (first, best) in measured.items():
            ratio = best / measured["rl_sync"][1]
            print(f"| {name} | {sum(lengths) / best:,.0f} | {ratio:.2f} x | {first:.2f} |")
        print(flush=True)
    print(engine().stats)


if __name__ == "__main__":
    main()
