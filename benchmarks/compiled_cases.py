"""Programs of real models to compile for accelerators, and a table of what was found.

The table is `compiled_figures.jsonl`: a line of JSON for each case, with the versions of the
compilers. `compiled.py` renews its lines, and `tests/plan/aot/test_figures.py` compares with them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from rl_sync.configs import base
from rl_sync.models import lora
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.plan import lowered_programs
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.kernel_counts import kernels_of_step, kernels_of_token
from rl_sync.plan.memory import explorer_memory, model_memory, trainer_memory
from rl_sync.plan.roofline import decode_work, link_bytes, step_work
from rl_sync.plan.targets import target
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.task import Task

SHAPES = Path(__file__).parent / "shapes"
"""Directories with the config.json of real models."""

TABLE = Path(__file__).parent / "compiled_figures.jsonl"

GROWTH, GAP = 0.05, 0.1
"""Greatest growth of a figure, and greatest gap between `plan` and the compiler."""

_FIGURES = (
    "planned_gb", "peak_gb", "link_gb", "cache_copies", "least_secs", "kernels", "layer_kernels",
    "versions",
)  # fmt: skip


class Case(NamedTuple):
    """A program to compile.

    Attributes:
      model: a directory of `SHAPES`.
      target: the accelerators.
      mesh: devices along data, fsdp, tensor, and then experts and context, which may be left out.
      rows: the rows of a microbatch, or the slots.
      tokens: the tokens of a row.
      program: `step`, or a program of the engine.
      remat: the setting `model.remat`.
      settings: other settings, by name.
      tiles: the tiles of each prompt's images; 0 for text alone.
    """

    model: str
    target: str
    mesh: tuple[int, ...]
    rows: int
    tokens: int
    program: str = "step"
    remat: str = "full"
    settings: tuple[tuple[str, Any], ...] = ()
    tiles: int = 0

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        more = "".join(f", {name}={value}" for name, value in self.settings)
        more += f", tiles={self.tiles}" * bool(self.tiles)
        remat = f", {self.remat}" if self.program == "step" else ""
        return (
            f"{self.model} {self.program}, {self.target} {mesh}, {self.rows} x {self.tokens}"
            f"{remat}{more}"
        )


SMALL, LARGE, HUGE, EXPERTS = "qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-72b", "qwen3-30b-a3b"
LLAMA, GEMMA, SEES = "llama-3.1-8b", "gemma-3-4b", "gemma-3-4b-vision"
OFFLOADED = (("trainer.offload_optimizer", True), ("trainer.offload_reference", True))
RANK_16 = (("model.lora.rank", 16),)
INT8 = (("explorer.quantization", "int8"),)
PAGES = (("rollout.cache_bytes", 400_000_000),)
LORA = (("model.lora.rank", 16), ("model.lora.targets", "q,k,v,o"))
CASES = (
    Case(SMALL, "v5e:2x2", (1, 4, 1), 8, 1024, remat="none"),
    Case(SMALL, "v5e:2x2", (1, 4, 1), 8, 1024),
    Case(SMALL, "v5e:2x2", (1, 4, 1), 4, 8192),
    Case(SMALL, "v5e:2x2", (1, 4, 1), 4, 32_768),
    Case(LARGE, "v5e:4x4", (1, 16, 1), 16, 1024),
    Case(LARGE, "v5e:4x4", (1, 16, 1), 16, 1024, settings=OFFLOADED[:1]),
    Case(LARGE, "v5e:4x4", (1, 16, 1), 16, 1024, settings=OFFLOADED),
    # Two that do not fit.
    Case(LARGE, "v5e:2x2", (1, 4, 1), 4, 1024),
    Case(LARGE, "v5e:2x2", (4, 1, 1), 64, 2048, "decode"),
    *(
        Case(SMALL, "v5e:2x2", (2, 1, 2), 64, 2048, name)
        for name in ("decode", "prefill", "insert")
    ),
    *(
        Case(LARGE, "v5e:2x2", (1, 1, 4), 64, 2048, name)
        for name in ("decode", "prefill", "insert")
    ),
    Case(SMALL, "h100:8", (1, 8, 1), 16, 1024),
    Case(SMALL, "h100:8", (1, 8, 1), 16, 1024, remat="none"),
    Case(SMALL, "h100:8", (1, 8, 1), 8, 32_768),
    Case(LARGE, "h100:8", (1, 8, 1), 16, 1024),
    *(Case(LARGE, "h100:8", (2, 1, 4), 64, 2048, name) for name in ("decode", "prefill", "insert")),
    Case("mistral-7b", "h100:8", (2, 2, 2), 16, 4096),
    Case("llama-3.2-1b", "h100:8", (1, 4, 2), 8, 6000, remat="dots"),
    # The factors of the estimates were not fitted to these sizes.
    Case("llama-3.2-1b", "v5e:2x4", (1, 4, 2), 8, 2048),
    Case("mistral-7b", "v5p:2x2x2", (1, 8, 1), 16, 4096),
    Case("qwen3-4b", "h100:4", (1, 1, 4), 2, 5000),
    Case(SMALL, "h100:1", (1, 1, 1), 4, 1024),
    Case(LARGE, "h100:8", (1, 8, 1), 16, 2000, settings=(("model.lora.rank", 16),)),
    Case("llama-3.2-1b", "h100:4", (2, 2, 1), 8, 2048, settings=(("trainer.batching", "packed"),)),
    *(
        Case("llama-3.2-1b", "v5e:2x4", (2, 1, 4), 192, 1500, name)
        for name in ("decode", "prefill", "insert")
    ),
    *(
        Case(LARGE, on, (1, 1, 4), 64, 2048, "decode", settings=(("explorer.quantization", of),))
        for on, of in (("v5e:2x2", "int8"), ("h100:4", "int8"), ("h100:4", "float8_e4m3fn"))
    ),
    Case(LARGE, "v5e:8x8", (1, 8, 1, 1, 8), 8, 131_072),
    Case(LARGE, "h100:16", (1, 2, 1, 1, 8), 2, 131_072),
    Case(EXPERTS, "v5e:2x4", (1, 1, 4, 2), 64, 2048, "decode"),
    Case(EXPERTS, "v5e:2x4", (1, 1, 4, 2), 64, 2048, "prefill"),
    Case(EXPERTS, "v5p:4x4x4", (1, 4, 1, 16), 64, 4096),
    Case(EXPERTS, "v5p:4x4x4", (1, 4, 1, 16), 64, 4096, settings=LORA),
    Case(EXPERTS, "h100:32", (1, 4, 1, 8), 32, 4096),
    Case(EXPERTS, "h100:32", (1, 4, 1, 8), 32, 4096, settings=LORA),
    Case(HUGE, "v5p:4x4x4", (1, 64, 1), 64, 4096),
    Case(HUGE, "h100:64", (1, 64, 1), 64, 4096),
    Case(HUGE, "v5p:2x2x2", (1, 1, 8), 64, 4096, "decode"),
    Case(HUGE, "h100:8", (1, 1, 8), 64, 4096, "decode"),
    Case(LLAMA, "v5p:2x2x2", (1, 8, 1), 16, 4096),
    Case(LLAMA, "h100:8", (1, 8, 1), 16, 4096),
    Case(LLAMA, "v5e:2x4", (1, 1, 8), 64, 4096, "decode"),
    Case(LLAMA, "h100:4", (1, 1, 4), 64, 4096, "decode"),
    Case(GEMMA, "v5e:4x4", (1, 16, 1), 16, 2048),
    Case(GEMMA, "h100:8", (1, 8, 1), 16, 2048),
    Case(GEMMA, "v5e:2x2", (1, 1, 4), 64, 4096, "decode"),
    Case(GEMMA, "h100:4", (1, 1, 4), 64, 4096, "decode"),
    Case(HUGE, "v5p:4x4x4", (1, 16, 4), 32, 3000, settings=LORA),
    Case(LLAMA, "h100:8", (1, 2, 4), 6, 10_000, remat="dots_no_batch"),
    Case("qwen3-4b", "v5e:4x4", (1, 8, 2), 24, 1536),
    Case(LARGE, "v5p:2x2x1", (1, 4, 1), 8, 3072, settings=(("trainer.batching", "shared"),)),
    Case(SMALL, "v5e:2x4", (2, 4, 1), 16, 3000, settings=(("trainer.batching", "packed"),)),
    Case("qwen3-4b", "h100:8", (2, 4, 1), 16, 2500, settings=LORA),
    Case("mistral-7b", "v5e:2x4", (2, 1, 4), 96, 1200, "decode"),
    Case("llama-3.2-1b", "h100:2", (2, 1, 1), 160, 3000, "decode"),
    Case("qwen3-4b", "v6e:2x4", (1, 1, 8), 320, 1800, "decode"),
    Case("qwen3-4b", "v6e:2x4", (1, 1, 8), 320, 1800, "prefill"),
    # One GPU, as most users have.
    Case(SMALL, "h100:1", (1, 1, 1), 64, 1024, "decode"),
    Case(LARGE, "h100:1", (1, 1, 1), 32, 1024, "decode"),
    Case(LARGE, "h100:1", (1, 1, 1), 128, 1024, "decode"),
    Case(LARGE, "h100:1", (1, 1, 1), 128, 1024, "decode", settings=INT8),
    Case(LLAMA, "h100:1", (1, 1, 1), 32, 1024, "decode"),
    Case(SMALL, "h100:1", (1, 1, 1), 64, 1024, "decode", settings=PAGES),
    Case(SMALL, "l4:1", (1, 1, 1), 64, 1024, "decode"),
    # Two devices share each kv head, and divide its cache.
    Case(LARGE, "v5e:2x4", (1, 1, 8), 64, 4096, "decode"),
    Case(LARGE, "h100:8", (1, 1, 8), 64, 4096, "decode"),
    # Devices share the positions of one long prompt, and then the slots.
    *(
        Case(LARGE, on, (1, 1, 4, 1, 2), 4, 131_072, name)
        for on in ("v5e:2x4", "h100:8")
        for name in ("prefill", "insert", "decode")
    ),
    # configs/vqa.py, on a GPU and on eight TPUs. Groups carry features of their images.
    *(
        Case(SEES, on, mesh, rows, 576, name, settings=RANK_16, tiles=1)
        for on, step, engine in (
            ("h100:1", (1, 1, 1), (1, 1, 1)),
            ("v5e:2x4", (1, 8, 1), (2, 1, 4)),
        )
        for name in ("step", "image_features", "prefill", "decode")
        for mesh, rows in [(step, 8 * step[1]) if name == "step" else (engine, 64)]
    ),
    # The tower is trained too, from pixels.
    Case(
        SEES,
        "v5e:4x4",
        (1, 16, 1),
        16,
        576,
        tiles=1,
        settings=(("model.vision.trains_tower", True),),
    ),
)


def read_table(path: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Returns the figures of a table by the names of their cases."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["case"]: line for line in map(json.loads, lines)}


def renew(line: Mapping[str, Any], path: Path = TABLE) -> None:
    """Writes the figures of a case to a table, in place of earlier ones; keeps the cases' order."""
    found = read_table(path)
    kept = {name: line[name] for name in ("case", *_FIGURES) if name in line}
    if "least_secs" in kept:
        kept["least_secs"] = float(f"{kept['least_secs']:.4g}")
    found[line["case"]] = kept
    order = [name for name in map(str, CASES) if name in found]
    path.write_text("".join(json.dumps(found[name]) + "\n" for name in order))


def regressions(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Returns what is worse in the figures of a case than in the table, a sentence each."""
    found = [
        f"{name} grew from {before[name]} to {now[name]}, by more than {GROWTH:.0%}"
        for name in ("peak_gb", "link_gb")
        if now[name] > (1 + GROWTH) * before[name] + 0.001  # Figures are rounded to a MB.
    ]
    found += [
        f"{name} grew from {before[name]} to {now[name]}"
        for name in ("kernels", "layer_kernels")
        if name in before and now[name] > (1 + GROWTH) * before[name]
    ]
    if now.get("cache_copies", 0) > before.get("cache_copies", 0):
        found.append(f"cache_copies grew from {before['cache_copies']} to {now['cache_copies']}")
    if gap(now) > GAP >= gap(before):
        found.append(
            f"plan says {now['planned_gb']} GB and the compiler {now['peak_gb']}: more than"
            f" {GAP:.0%} apart, and the table has {before['planned_gb']} and {before['peak_gb']}"
        )
    return found


def gap(line: Mapping[str, Any]) -> float:
    """Returns how far the planned peak is from the compiler's, as a share of the latter."""
    return abs(line["planned_gb"] / line["peak_gb"] - 1)


def run_of(case: Case) -> tuple[RunSettings, Task]:
    """Returns the settings and the task of a run whose programs have a case's sizes."""
    config = base.get_config()
    config.model.update({"path": str(SHAPES / case.model), "dtype": "bfloat16"})
    config.model.remat = case.remat
    config.sft.steps = 0
    config.algorithm.name = "grpo"
    config.optimizer.updates_per_batch = 1
    data, fsdp, tensor, experts, context = (*case.mesh, 1, 1)[:5]
    config.trainer.update(
        {"group_size": 4, "groups_per_step": case.rows, "microbatch_rows": case.rows}
    )
    both = {"tensor": tensor, "experts": experts}
    config.trainer.mesh.update({"data": data, "fsdp": fsdp, "context": context, **both})
    of_engine = {} if case.program == "step" else {"context": context}
    config.explorer.mesh.update({"data": data * fsdp, **of_engine, **both})
    config.rollout.slots = case.rows
    config.workdir = "/nowhere"
    for name, value in case.settings:
        config.update_from_flattened_dict({name: value})
    settings = read_settings(config.to_dict())
    # The model's vocabulary counts where it is larger.
    tokenizer = SimpleNamespace(vocab_size=1, eos_ids=(0,), end_ids=(0,), decode=None)
    processor = None
    if case.tiles:
        vision = load_config(SHAPES / case.model, vision=True).vision
        assert vision is not None
        processor = SquareTiles(vision.image_size, vision.tile_tokens)
        tokenizer.image_id = lambda marks: vision.token_id
    task: Any = SimpleNamespace(
        reward="math",
        processor=processor,
        trained_tiles=case.tiles,
        tokenizer=tokenizer,
        row_tokens=case.tokens,
        max_completion_tokens=case.tokens // 2,
        max_drawn_tokens=case.tokens // 2,
    )
    return settings, cast(Task, task)


def program_of(
    case: Case, settings: RunSettings, task: Task, layout: Layout
) -> lowered_programs.LowerableProgram:
    """Returns the program of a case, on a layout."""
    if case.program == "step":
        return lowered_programs.train_step(settings, task, layout)
    offered = lowered_programs.rollout_programs(settings, task, layout)
    return next(one for one in offered if one.name == case.program)


def planned(case: Case) -> dict[str, Any]:
    """Estimates the bytes of a case; returns the first part of its line."""
    settings, task = run_of(case)
    chip = target(case.target).chip
    if case.program == "step":
        found = trainer_memory.step_estimate(settings, task, chip.platform)
    else:
        layout = settings.explorer_layout
        sizes = program_of(case, settings, task, layout).sizes
        found = explorer_memory.ESTIMATES[case.program](settings, task, chip.platform, sizes)
    parts = {**found.held, **found.made, **found.work}
    return {
        "case": str(case),
        "planned_gb": round(found.peak / 1e9, 3),
        "fits": found.peak <= chip.memory,
        "parts_gb": {name: round(size / 1e9, 3) for name, size in parts.items()},
    }


def compiled(case: Case) -> dict[str, Any]:
    """Compiles a case; returns the other part of its line.

    The least time is that of a step of all microbatches, or of one token of each slot.
    """
    settings, task = run_of(case)
    where = target(case.target)
    trains = case.program == "step"
    layout = lowered_programs.layout_on(
        settings, "trainer" if trains else "explorer", where.devices()
    )
    program = program_of(case, settings, task, layout)
    started = time.process_time()
    try:
        reading = CompiledProgramText.of(program.compile())
    except Exception as error:
        return {"error": str(error)[:400]}
    use = reading.memory
    alone, hidden = link_bytes(reading, settings.rollout.chunk_tokens)
    line: dict[str, Any] = {
        "peak_gb": round(use.peak / 1e9, 3),
        "arguments_gb": round(use.arguments / 1e9, 3),
        "temporaries_gb": round(use.temporaries / 1e9, 3),
        "sizes": program.sizes,
        "compile_cpu_s": round(time.process_time() - started),
        "link_gb": round((alone + hidden) / 1e9, 3),
        "hidden_share": round(hidden / max(alone + hidden, 1.0), 2),
        "versions": versions(case),
        "largest_mb": round(max((one.bytes for one in reading.collectives), default=0) / 1e6),
    }
    rates = where.rates(layout.mesh.size)
    if trains:
        line["least_secs"] = step_work(settings, task, reading).secs(rates)
    elif case.program == "decode":
        slots, span = program.sizes
        line["least_secs"] = decode_work(settings, task, slots, span, reading).secs(rates)
        line["cache_copies"] = cache_copies(reading, settings, task, where.chip.platform, slots)
    if where.chip.platform == "gpu" and trains:
        line["kernels"] = kernels_of_step(reading)
    elif where.chip.platform == "gpu" and case.program == "decode":
        found = kernels_of_token(reading, wiring.explorer_model(settings, task).num_layers)
        line |= {"kernels": found.total, "layer_kernels": round(found.of_layer, 2)}
    return line


def versions(case: Case) -> dict[str, str]:
    """Returns the versions of the packages that compile a case; one that is missing has none."""
    names = ["jax", "libtpu"]
    if target(case.target).chip.platform == "gpu":
        names = ["jax", "jax-cuda12-plugin", "jax-cuda13-plugin"]
        if wiring.trainer_model(*run_of(case)).experts:
            names.append("tokamax")  # Its kernel multiplies experts.
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def cache_copies(
    reading: CompiledProgramText,
    settings: RunSettings,
    task: Task,
    platform: Platform,
    slots: int,
) -> int:
    """Returns how many arrays as large as all keys a decode program makes.

    Updates of the cache in place are left out.
    """
    model = lora.merged_config(wiring.explorer_model(settings, task))
    with compiling_for(platform):
        both = model_memory.cache_bytes(model, slots, model.max_length, settings.explorer_layout)
    keys = both / 2
    return sum(
        any(abs(shape.bytes - keys) < 0.05 * keys for shape in one.shapes)
        for one in reading.made(0.9 * keys)
        if not one.in_place
    )
