"""Real models that train on one GPU, with settings for its memory, by estimates from shapes.

    python benchmarks/cards.py
    python benchmarks/cards.py --cards=8,16
    python benchmarks/cards.py --mode=synchronous
    python benchmarks/cards.py --tokens=4096,16384 --models=Qwen2.5-7B,Llama-3.1-8B

Trainer and explorer share the GPU (`launch.colocate`), and each keeps its arrays there, so the
maximum of both has to fit in what a run reserves of the memory. With `sync.mode=synchronous` they
take turns: a cache of rollouts is never beside a step. Of a short list of settings a
cell has the first that fit: rows of a microbatch × their tokens, slots, and what saves memory.
GRPO with a reference model, in bfloat16, with `model.remat=full`; adapters have rank 16. The
tables are Markdown, as README.md and docs/how-to/gpus.md have them. Nothing is compiled or run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from absl import app, flags
from shapes.run import get_config

from rl_sync.cluster.gpus import RESERVED
from rl_sync.plan.memory.device_sharing import shared_peak
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings

MODELS = {
    "Qwen2.5-0.5B": "qwen2.5-0.5b",
    "Llama-3.2-1B": "llama-3.2-1b",
    "Qwen3-4B": "qwen3-4b",
    "Qwen2.5-7B": "qwen2.5-7b",
    "Llama-3.1-8B": "llama-3.1-8b",
}
"""Directories of shapes, by the names of their models."""

CARDS, TOKENS = (24, 40, 80), (1024,)
TRAINED = {"all parameters": 0, "adapters": 16}
"""Ranks of the adapters; 0 without adapters."""

_SHAPES = Path(__file__).parent / "shapes"
_PROMPT_TOKENS = 256
_ROWS, _SLOTS, _FEW_SLOTS = (4, 1), (64, 32, 16), (8, 4)
_OFFLOAD, _INT8 = "offload", "int8"
_SAVINGS = {0: ((), (_OFFLOAD,), (_OFFLOAD, _INT8)), 16: ((), (_INT8,))}
"""Names of what saves memory, by the rank: what costs least comes first. The optimizer of adapters
is too small to offload."""

_CARDS = flags.DEFINE_list("cards", [*map(str, CARDS)], "GB of the GPUs' memory.")
_TOKENS = flags.DEFINE_list("tokens", [*map(str, TOKENS)], "Tokens of a row, 256 of the prompt.")
_MODE = flags.DEFINE_string("mode", "", "The run's sync.mode; its default if left out.")
_MODELS = flags.DEFINE_list("models", [*MODELS], "Models to look at.")


class Fit(NamedTuple):
    """Settings that fit a GPU.

    Attributes:
      rows: `trainer.microbatch_rows`.
      slots: `rollout.slots`.
      savings: names of what saves memory.
      peak: estimated bytes of both roles at their maximum.
    """

    rows: int
    slots: int
    savings: tuple[str, ...]
    peak: int


def fit(model: str, rank: int, tokens: int, gigabytes: int, mode: str = "") -> Fit | None:
    """Returns the first settings that fit a GPU; None if there are none.

    Args:
      model: key of `MODELS`.
      rank: rank of the adapters; 0 trains all parameters.
      tokens: tokens of a row.
      gigabytes: memory of the GPU.
      mode: `sync.mode`; its default if empty.
    """
    for savings, slots, rows in _tried(rank):
        settings = _plain(model, rank, tokens, mode)
        trainer = _trainer(model, rank, tokens, rows, _OFFLOAD in savings)
        quantization = _INT8 if _INT8 in savings else "none"
        explorer = _explorer(model, rank, tokens, slots, quantization, mode)
        peak = shared_peak(settings, trainer, explorer)
        if peak <= RESERVED * gigabytes * 1e9:
            return Fit(rows, slots, savings, peak)
    return None


def _tried(rank: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yields what saves memory, slots, and rows of a microbatch, from the best settings on."""
    savings = _SAVINGS[rank]
    yield from itertools.product(savings, _SLOTS, _ROWS)
    yield from itertools.product(savings[-1:], _FEW_SLOTS, _ROWS[-1:])


@functools.cache
def _trainer(model: str, rank: int, tokens: int, rows: int, offloads: bool) -> MemoryEstimate:
    settings = _settings(
        model,
        rank,
        tokens,
        {
            "trainer.microbatch_rows": rows,
            "trainer.offload_optimizer": offloads,
            "trainer.offload_reference": offloads,
        },
    )
    return step_estimate(settings, wiring.load_task(settings), "gpu")


@functools.cache
def _explorer(
    model: str, rank: int, tokens: int, slots: int, quantization: str, mode: str
) -> MemoryEstimate:
    changes = _in_mode(mode)
    changes |= {"rollout.slots": slots, "explorer.quantization": quantization}
    settings = _settings(model, rank, tokens, changes)
    return explorer_estimate(settings, wiring.load_task(settings), "gpu")


@functools.cache
def _plain(model: str, rank: int, tokens: int, mode: str) -> RunSettings:
    return _settings(model, rank, tokens, _in_mode(mode))


def _in_mode(mode: str) -> dict[str, object]:
    return {"sync.mode": mode} if mode else {}


def _settings(model: str, rank: int, tokens: int, changes: dict[str, object]) -> RunSettings:
    config = get_config()
    config.update_from_flattened_dict(
        {
            "workdir": "",
            "model.path": str(_SHAPES / MODELS[model]),
            "model.lora.rank": rank,
            "task.name": f"{_SHAPES / 'run.py'}:problems",
            "task.max_prompt_tokens": _PROMPT_TOKENS,
            "task.max_completion_tokens": tokens - _PROMPT_TOKENS,
            "launch.colocate": True,
            "launch.share_devices": True,
            **changes,
        }
    )
    return read_settings(config.to_dict())


def table(
    models: Sequence[str], cards: Sequence[int], tokens: Sequence[int], mode: str = ""
) -> list[str]:
    """Returns the lines of a table, without rows that fit no GPU.

    Args:
      models: keys of `MODELS`.
      cards: GB of the GPUs' memory.
      tokens: tokens of a row.
      mode: `sync.mode`; its default if empty.
    """
    heads = ["model", "trained", *(f"{size} GB" for size in cards)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model, (trained, rank), length in itertools.product(models, TRAINED.items(), tokens):
        found = [fit(model, rank, length, size, mode) for size in cards]
        if any(found):
            cells = [model, trained, *(_cell(one, length) for one in found)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(found: Fit | None, tokens: int) -> str:
    if found is None:
        return "–"
    savings = "".join(f", {name}" for name in found.savings)
    size = format_bytes(found.peak)
    return f"{found.rows} × {tokens:,}, {found.slots} slots{savings}: {size}"


def main(_: list[str]) -> None:
    """Prints a table."""
    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator.
    cards, tokens = ([*map(int, flag.value)] for flag in (_CARDS, _TOKENS))
    print("\n".join(table(_MODELS.value, cards, tokens, _MODE.value)))


if __name__ == "__main__":
    app.run(main)
