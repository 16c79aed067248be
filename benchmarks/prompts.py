"""Seconds of a trainer step on long prompts with short completions, by the layout of its rows.

    python benchmarks/prompts.py [--model=DIRECTORY] [--rounds=3] [--clock=wall]

The step is GRPO's with adapters of rank 16, on 8 prompts of 60 to 100 tokens with 8 completions of
5 to 20 tokens each. The model has the shape of SmolLM2-135M and random weights, or is the one in
DIRECTORY (`benchmarks/real_model.py` makes one). Layouts (`trainer.batching`) are measured in
turns, on the same groups. Each line has the least, the median and the greatest of the rounds, and
the same of the ratio to the first layout in the same round.

`--clock=cpu` counts the CPU seconds of the process, which hardly depend on other load.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from peers.asking import timed
from peers.serving import CLOCKS

from rl_sync.cluster import malloc
from rl_sync.configs import base
from rl_sync.learning.learning_settings import SftConfig
from rl_sync.learning.objective import LossConfig
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import Lora, ModelConfig
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.sharding import Layout
from rl_sync.roles.assembly.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.settings.config_reading import read_settings
from rl_sync.types import Group, TrainBatch

_KEPT = "RL_SYNC_BENCHMARK"
PROMPT_TOKENS, NEW_TOKENS = (60, 100), (5, 20)
ROW_TOKENS = PROMPT_TOKENS[1] + NEW_TOKENS[1]
GROUP_SIZE = 8
LAYOUTS = ("padded", "packed", "shared")
SMOLLM2 = ModelConfig(
    vocab_size=49152,
    embed_dim=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    mlp_dim=1536,
    max_length=ROW_TOKENS,
    rope_base=100_000.0,
    lora=Lora(16, 32.0),
)


def groups_of(count: int, seed: int, vocab_size: int) -> list[Group]:
    """Makes groups of random tokens."""
    rng = np.random.default_rng(seed)
    return [_group(rng, vocab_size) for _ in range(count)]


def _group(rng: np.random.Generator, vocab_size: int) -> Group:
    prompt = rng.integers(*PROMPT_TOKENS, endpoint=True)
    ends = prompt + rng.integers(*NEW_TOKENS, (GROUP_SIZE, 1), endpoint=True)
    position = np.arange(ROW_TOKENS)
    mask = (position >= prompt) & (position < ends)
    tokens = rng.integers(3, vocab_size, mask.shape)
    tokens = np.where(position < prompt, tokens[:1], np.where(mask, tokens, 0))
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=0,
        tokens=tokens.astype(np.int32),
        completion_mask=mask,
        behavior_logprobs=np.where(mask, -np.log(vocab_size), 0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rng.standard_normal(GROUP_SIZE).astype(np.float32),
    )


class Steps:
    """A trainer, and its state.

    Args:
      path: the directory of a checkpoint; None for random weights.
      kl_coefficient: above 0 for a reference model.
    """

    def __init__(self, path: str | None, kl_coefficient: float) -> None:
        config = base.get_config()
        config.workdir = "none"
        config.algorithm.update({"name": "grpo", "kl_coefficient": kl_coefficient})
        config.algorithm.allow_unsafe = True
        config.optimizer.update({"updates_per_batch": 1, "learning_rate": 1e-5})
        settings = read_settings(config.to_dict())
        model = SMOLLM2
        if path is not None:
            found = load_config(Path(path))
            model = dataclasses.replace(found, lora=SMOLLM2.lora, max_length=ROW_TOKENS)
        self.trainer = Trainer(
            model,
            LossConfig(
                settings.algorithm,
                GROUP_SIZE,
                max_completion_tokens=NEW_TOKENS[1],
                end_ids=(),
                microbatch_rows=0,
            ),
            settings.optimizer,
            temperature=1.0,
            steps=settings.trainer.steps,
            sft=SftConfig(),
            logits_bytes=settings.trainer.logits_bytes,
            layout=Layout.single(),
        )
        parameters = Parameters(model, path, 0, self.trainer.layout, model.dtype)
        self.state = self.trainer.begin(self.trainer.start(parameters.initial()))

    def take(self, batch: TrainBatch) -> None:
        """Takes a step, and waits for it."""
        self.state, metrics = self.trainer.step(self.state, batch)
        jax.block_until_ready(metrics)


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}, {statistics.median(values):.2f}, {max(values):.2f}"


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the directory of a checkpoint")
    parser.add_argument("--groups", type=int, default=8, help="of a step")
    parser.add_argument("--kl", type=float, default=0.0, help="above 0 for a reference model")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="of these")
    parser.add_argument("--rounds", type=int, default=3, help="after one that compiles")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    if _KEPT not in os.environ:
        environment = {**malloc.environment(os.environ), _KEPT: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    steps = Steps(arguments.model, arguments.kl)
    kinds, trajectories = arguments.layouts.split(","), arguments.groups * GROUP_SIZE
    shapes: dict[str, tuple[int, ...]] = {}
    secs: dict[str, list[float]] = {kind: [] for kind in kinds}
    # One seed: another batch may have another shape, which would be compiled.
    groups = groups_of(arguments.groups, 0, steps.trainer.model.vocab_size)
    for turn in range(arguments.rounds + 1):
        for kind in kinds:
            batch = Batching(kind, trajectories, ROW_TOKENS, 1, 0).batch(groups)
            shapes[kind] = batch.rows.tokens.shape
            took = timed({"clock": arguments.clock}, functools.partial(steps.take, batch))
            print(f"# round {turn}, {kind}: {took:.2f} s", file=sys.stderr, flush=True)
            secs[kind].append(took)
    print("| layout | rows | step, s | of the first | first call, s |\n|---|---|---|---|---|")
    for kind, (first, *later) in secs.items():
        ratios = [one / other for one, other in zip(later, secs[kinds[0]][1:], strict=True)]
        rows = " x ".join(map(str, shapes[kind]))
        print(f"| {kind} | {rows} | {_spread(later)} | {_spread(ratios)} | {first:.1f} |")


if __name__ == "__main__":
    main()
