"""Programs of real models, compiled for TPUs and GPUs on a machine without them.

    pip install 'jax[tpu]' && python benchmarks/compiled.py --target=v5e
    pip install 'jax[cuda12]' && python benchmarks/compiled.py --target=h100

Each case is compiled from shapes alone, with GRPO and its reference model, in bfloat16. A line has
the compiler's bytes a device beside those that `plan` estimates, CPU seconds of compilation, what
travels between the devices, and the least times by the roofline model. Nothing is run. One case
takes one to four CPU minutes: `--only=PART` takes the cases whose names have PART.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import jax
from absl import app, flags

from rl_sync.configs import base
from rl_sync.models.sharding import Layout
from rl_sync.plan import lowered_programs, memory_estimate
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.roofline import decode_work, link_bytes, step_work
from rl_sync.plan.targets import target
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

TARGET = flags.DEFINE_string("target", "v5e", "The kind of chip whose cases are compiled.")
ONLY = flags.DEFINE_string("only", "", "A part of the names of the cases to compile.")
ESTIMATE_ONLY = flags.DEFINE_bool("estimate_only", False, "Compile nothing: print the estimates.")
OUT = flags.DEFINE_string("out", "", "A file for the results, a line of JSON each.")

SHAPES = Path(__file__).parent / "shapes"
"""Directories with the config.json of real models."""


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
    """

    model: str
    target: str
    mesh: tuple[int, ...]
    rows: int
    tokens: int
    program: str = "step"
    remat: str = "full"
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        more = "".join(f", {name}={value}" for name, value in self.settings)
        remat = f", {self.remat}" if self.program == "step" else ""
        return (
            f"{self.model} {self.program}, {self.target} {mesh}, {self.rows} x {self.tokens}"
            f"{remat}{more}"
        )


SMALL, LARGE, EXPERTS = "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-30b-a3b"
OFFLOADED = (("trainer.offload_optimizer", True), ("trainer.offload_reference", True))
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
)


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
    config.explorer.mesh.update({"data": data * fsdp, **both})
    config.rollout.slots = case.rows
    config.workdir = "/nowhere"
    for name, value in case.settings:
        config.update_from_flattened_dict({name: value})
    tokenizer = SimpleNamespace(vocab_size=1, eos_ids=(0,), decode=None)  # Or the model's is more.
    task: Any = SimpleNamespace(
        tokenizer=tokenizer,
        row_tokens=case.tokens,
        max_completion_tokens=case.tokens // 2,
        max_drawn_tokens=case.tokens // 2,
    )
    return read_settings(config.to_dict()), cast(Task, task)


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
        found = memory_estimate.step_estimate(settings, task, chip.platform)
    else:
        layout = settings.explorer_layout
        sizes = program_of(case, settings, task, layout).sizes
        found = memory_estimate.ESTIMATES[case.program](settings, task, chip.platform, sizes)
    parts = {**found.held, **found.made, **found.work}
    return {
        "case": str(case),
        "planned_gb": round(found.peak / 1e9, 3),
        "fits": found.peak <= chip.memory,
        "parts_gb": {name: round(size / 1e9, 3) for name, size in parts.items()},
    }


def compiled(case: Case) -> dict[str, Any]:
    """Compiles a case; returns the other part of its line."""
    settings, task = run_of(case)
    where = target(case.target)
    trains = case.program == "step"
    layout = lowered_programs.layout_on(
        settings, "trainer" if trains else "explorer", where.devices()
    )
    program = program_of(case, settings, task, layout)
    started = time.process_time()
    try:
        reading = CompiledProgramText.of(program.lower().compile())
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
        "largest_mb": round(max((one.bytes for one in reading.collectives), default=0) / 1e6),
    }
    rates = where.rates(layout.mesh.size)
    if trains:
        line["step_s"] = step_work(settings, task, reading).secs(rates)
    elif case.program == "decode":
        slots, span = program.sizes
        line["token_s"] = decode_work(settings, task, slots, span, reading).secs(rates)
    return line


def main(_: list[str]) -> None:
    """Compiles the cases of a kind of chip, and prints a line of JSON for each."""
    jax.config.update("jax_platforms", "cpu")  # Nothing runs, so an accelerator stays free.
    for case in CASES:
        if not case.target.startswith(TARGET.value) or ONLY.value not in str(case):
            continue
        line = planned(case)
        if not ESTIMATE_ONLY.value:
            line |= compiled(case)
        if "peak_gb" in line:
            line["planned_share"] = round(line["planned_gb"] / line["peak_gb"], 2)
        text = json.dumps(line, ensure_ascii=False)
        print(text, flush=True)
        if OUT.value:
            with open(OUT.value, "a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
