"""Seconds of a trainer step: ours, Tunix's model and log-probabilities, transformers on torch.

    python benchmarks/train.py [--rounds=5] [--rows=64] [--clock=wall]

The step has 64 rows of 16 + 64 tokens and one update of the clipped policy loss with AdamW. All
sides have random weights of one shape (`benchmarks/peers/serving.py`) in float32, and are measured
in turns. Beside them is the time of the step's matrix products alone, forward and backward, a lower
bound in float32. Peers run in environments of their own, and are left out if these cannot be made.

The launcher makes glibc keep memory that roles free (`rl_sync/cluster/malloc.py`). Peers are
measured with their own settings, and with ours.

Every figure is the best of several rounds. The first call includes compilation.

`--clock=cpu` counts the CPU seconds of a process, which hardly depend on other load. With
`JAX_COMPILATION_CACHE_DIR` and `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0` in the environment,
all sides with JAX keep their compiled programs, and first calls of later runs read them.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from peers.asking import Ask, Peer, PeerRequest, in_turns, timed
from peers.serving import CLIP, CLOCKS, LEARNING_RATE, SHAPE
from rollout import model_config

from rl_sync.cluster import malloc
from rl_sync.configs import base
from rl_sync.learning.objective import LossConfig
from rl_sync.models.sharding import Layout
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.settings.config_reading import read_settings
from rl_sync.types import Rows, TrainBatch

_KEPT = "RL_SYNC_BENCHMARK"
PROMPT_TOKENS, NEW_TOKENS = 16, 64
GROUP_SIZE = 8


class OurStep:
    """Our trainer with one update a step, and its state."""

    def __init__(self) -> None:
        config = base.get_config()
        config.workdir = "none"
        config.algorithm.update({"kl_coefficient": 0.0, "clip_low": CLIP, "clip_high": CLIP})
        config.optimizer.update({"updates_per_batch": 1, "learning_rate": LEARNING_RATE})
        settings = read_settings(config.to_dict())
        self.trainer = Trainer(
            model_config(),
            LossConfig(
                settings.algorithm,
                GROUP_SIZE,
                max_completion_tokens=NEW_TOKENS,
                end_ids=(),
                microbatch_rows=0,
            ),
            settings.optimizer,
            temperature=1.0,
            steps=settings.trainer.steps,
            sft=settings.sft,
            logits_bytes=settings.trainer.logits_bytes,
            layout=Layout.single(),
        )
        self.state = self.trainer.begin(self.trainer.init(jax.random.key(0)))

    def run(self, batch: TrainBatch) -> None:
        self.state, metrics = self.trainer.step(self.state, batch)
        jax.block_until_ready(metrics)


@functools.cache
def our_step() -> OurStep:
    return OurStep()


def ours(request: PeerRequest) -> float:
    """Measures one step of ours on rows of random tokens."""
    rng = np.random.default_rng(request["seed"])
    shape = (request["rows"], PROMPT_TOKENS + NEW_TOKENS)
    mask = np.broadcast_to(np.arange(shape[1]) >= PROMPT_TOKENS, shape)
    rows = Rows(
        tokens=jnp.asarray(rng.integers(3, SHAPE.vocab, shape), jnp.int32),
        completion_mask=jnp.asarray(mask),
        behavior_logprobs=jnp.asarray(np.where(mask, -6.2, 0.0), jnp.float32),
        policy_versions=jnp.zeros(shape, jnp.int32),
    )
    batch = TrainBatch(rows, jnp.asarray(rng.standard_normal(shape[0]), jnp.float32))
    step = our_step()
    return timed(request, lambda: step.run(batch))


@functools.cache
def _kernels() -> list[jax.Array]:
    """Makes the matrices that multiply a token's activations, layer after layer."""
    V, D, L, N, K, H, F = SHAPE
    shapes = [(D, (N + 2 * K) * H), (N * H, D), (D, 2 * F), (F, D)] * L + [(D, V)]
    return [jnp.full(shape, 0.01) for shape in shapes]


@jax.jit
def _multiply(kernels: list[jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
    """Computes each product, and the two of its backward pass."""
    results = []
    for kernel, x in zip(kernels, inputs, strict=True):
        y = x @ kernel
        results += [y @ kernel.T, x.T @ y]
    return results


def products(request: PeerRequest) -> float:
    """Measures the step's products with parameters, and nothing else."""
    tokens = request["rows"] * (PROMPT_TOKENS + NEW_TOKENS)
    inputs = [jnp.full((tokens, kernel.shape[0]), float(request["seed"])) for kernel in _kernels()]
    jax.block_until_ready(inputs)
    return timed(request, lambda: jax.block_until_ready(_multiply(_kernels(), inputs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--rows", type=int, default=64, help="of a step, in groups of 8")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    rounds, clock = arguments.rounds, arguments.clock
    if _KEPT not in os.environ:
        environment = {**malloc.environment(os.environ), _KEPT: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    ordinary = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    request = {
        "action": "train", "rows": arguments.rows, "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS, "clock": clock,
    }  # fmt: skip
    scripts = {"Tunix": "tunix_peer.py", "transformers": "torch_peer.py"}
    peers = [Peer(name, script, ordinary) for name, script in scripts.items()]
    peers += [Peer(f"{name}, our allocator", script) for name, script in scripts.items()]
    sides: dict[str, tuple[Ask, PeerRequest]] = {"rl_sync": (ours, request)}
    sides |= {peer.name: (peer.ask, request) for peer in peers}
    sides["matrix products"] = (products, request)
    for peer in peers:
        peer.await_imports()
    measured = in_turns(sides, rounds)
    for peer in peers:
        peer.close()
    print("| | step, s | rl_sync takes | first call, s |\n|---|---|---|---|")
    for name, (first, best) in measured.items():
        ratio = measured["rl_sync"][1] / best
        print(f"| {name} | {best:.2f} | {ratio:.2f} x | {first:.2f} |")


if __name__ == "__main__":
    main()
