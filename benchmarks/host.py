"""Share of the engine's host side in a decode step, on a model whose device time is known.

    python benchmarks/host.py [--slots=256] [--step_ms=10] [--seeds=3]

A tiny model decodes 256 sequences of log-normal lengths (8 to 512 tokens, median 64, sigma 1) while
others wait. A device of a known speed is simulated: the tokens of a chunk arrive once its steps
would have taken `--step_ms` each, counted from the dispatch. A model of 7 billion parameters in
bfloat16 reads 14 GB a step, which takes 4 ms at 3.35 TB/s, and its caches besides. The time beyond
the device's is the host's: it starts sequences, reads tokens, looks for stop strings, and also
computes the tiny model, which counts against it. The share is (wall time - device's time) /
device's time, without the steps that compile, and a second column counts the CPU seconds of the
host's thread alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("".join(map(chr, range(33, 127))))
PROMPT_TOKENS, GROUP_SIZE, MOST = 32, 8, 512
MODEL = ModelConfig(
    vocab_size=TOKENIZER.vocab_size,
    embed_dim=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=8,
    max_length=PROMPT_TOKENS + MOST,
)
_get = jax.device_get


class Device:
    """A simulated device: a chunk is ready once its steps would have taken their time."""

    def __init__(self, decode: Callable[..., Any], step_secs: float) -> None:
        self._decode, self._step_secs, self._began = decode, step_secs, 0.0
        self.secs = 0.0

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Dispatches a chunk, and starts the clock."""
        self._began = time.monotonic()
        return self._decode(*arguments, **options)

    def get(self, chunk: Any) -> Any:
        """Returns a chunk, at the earliest when its steps are over."""
        found = _get(chunk)
        secs = int(found.steps) * self._step_secs
        self.secs += secs
        time.sleep(max(0.0, self._began + secs - time.monotonic()))
        return found


def requests(seed: int, count: int, stops: tuple[str, ...]) -> list[CompletionRequest]:
    """Makes groups of completions of log-normal lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(np.log(64), 1, count)).round(), 8, MOST).astype(int)
    return [
        CompletionRequest(
            rng.integers(2, MODEL.vocab_size, PROMPT_TOKENS).astype(np.int32),
            Sampling(int(length), (), stop_strings=stops),
            GROUP_SIZE,
            (seed, i),
        )
        for i, length in enumerate(lengths)
    ]


def measure(seed: int, slots: int, step_secs: float, stops: tuple[str, ...]) -> tuple[float, float]:
    """Returns the host's share by the wall clock and by its thread's CPU clock."""
    engine = Engine(
        MODEL,
        Layout.single(),
        EngineOptions(slots=slots, decode=TOKENIZER.decode, stepped_tokens=0),
    )
    engine.load(init_params(MODEL, jax.random.key(seed)), 0)
    engine.generate(requests(seed, 2 * slots // GROUP_SIZE, stops))  # Compiles.
    batch = engine._batch
    device = Device(batch.decode, step_secs)
    engine.submit(requests(seed + 1, 6 * slots // GROUP_SIZE, stops))
    with (
        mock.patch.object(batch, "decode", device.decode),
        mock.patch.object(jax, "device_get", device.get),
    ):
        wall, cpu = time.monotonic(), time.thread_time()
        while engine.unfinished > 2 * slots:  # Full slots, and others that wait.
            engine.step()
        wall, cpu = time.monotonic() - wall, time.thread_time() - cpu
    return (wall - device.secs) / device.secs, cpu / device.secs


def main() -> None:
    """Prints the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--step_ms", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("| stop strings | host, % of the device's time (wall) | its thread's CPU time, % |")
    print("|---|---|---|")
    for name, stops in {"none": (), "one of two characters": ("~~",)}.items():
        found = [
            measure(seed, arguments.slots, arguments.step_ms / 1000, stops)
            for seed in range(arguments.seeds)
        ]
        columns = [
            " / ".join(f"{100 * value:.1f}" for value in (min(of), statistics.median(of), max(of)))
            for of in zip(*found, strict=True)
        ]
        print(f"| {name} | {columns[0]} | {columns[1]} |", flush=True)


if __name__ == "__main__":
    main()
