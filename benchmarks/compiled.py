"""Programs of real models, compiled for TPUs and GPUs that are not there.

    pip install 'jax[tpu]' && python benchmarks/compiled.py --target=v5e
    pip install 'jax[cuda12]' && python benchmarks/compiled.py --target=h100

Each case is compiled from shapes alone, with GRPO and its reference model, in bfloat16. A line has
the compiler's bytes a device beside those that `plan` estimates, CPU seconds of compilation, what
travels between the devices, and the times that rooflines allow. Nothing is run. One case takes one
to four CPU minutes: `--only=PART` takes the cases whose names have PART.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags
from launcher.compiling import decode_secs, step_secs

from configs import base
from rl_sync.aot import estimate, programs
from rl_sync.aot.reading import Reading
from rl_sync.aot.roofline import link_bytes
from rl_sync.aot.targets import target
from rl_sync.settings.reading import read_settings
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task

TARGET = flags.DEFINE_string("target", "v5e", "The kind of chip whose cases are compiled.")
ONLY = flags.DEFINE_string("only", "", "A part of the names of the cases to compile.")
OUT = flags.DEFINE_string("out", "", "A file for the results, a line of JSON each.")

QWEN_05B = {
    "embed_dim": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "head_dim": 64,
    "mlp_dim": 4864, "tie_embeddings": True, "vocab": 151_936,
}  # fmt: skip
QWEN_7B = {
    "embed_dim": 3584, "num_layers": 28, "num_heads": 28, "num_kv_heads": 4, "head_dim": 128,
    "mlp_dim": 18_944, "tie_embeddings": False, "vocab": 152_064,
}  # fmt: skip


class Case(NamedTuple):
    """A program to compile.

    Attributes:
      name: what a table calls it.
      model: its shape.
      target: the accelerators.
      mesh: devices along data, fsdp and tensor.
      rows: of a microbatch, or slots.
      tokens: of a row.
      program: `step`, or a program of the engine.
      remat: what the backward pass recomputes.
    """

    name: str
    model: dict[str, Any]
    target: str
    mesh: tuple[int, int, int]
    rows: int
    tokens: int
    program: str = "step"
    remat: str = "full"


CASES = (
    Case(
        "0.5B step, 2 rows × 1k, remat none", QWEN_05B, "v5e:2x2", (1, 4, 1), 8, 1024, remat="none"
    ),
    Case("0.5B step, 2 rows × 1k", QWEN_05B, "v5e:2x2", (1, 4, 1), 8, 1024),
    Case("0.5B step, 1 row × 8k", QWEN_05B, "v5e:2x2", (1, 4, 1), 4, 8192),
    Case("0.5B step, 1 row × 32k", QWEN_05B, "v5e:2x2", (1, 4, 1), 4, 32_768),
    Case("0.5B step, 2 rows × 1k", QWEN_05B, "v5e:2x4", (1, 8, 1), 16, 1024),
    Case("7B step, 1 row × 1k", QWEN_7B, "v5e:4x4", (1, 16, 1), 16, 1024),
    Case("0.5B decode, 64 × 2k", QWEN_05B, "v5e:2x2", (2, 1, 2), 64, 2048, "decode"),
    Case("7B decode, 64 × 2k", QWEN_7B, "v5e:2x2", (1, 1, 4), 64, 2048, "decode"),
    Case("0.5B prefill, 16 × 512", QWEN_05B, "v5e:2x2", (2, 1, 2), 16, 1024, "prefill"),
    Case("7B prefill, 16 × 512", QWEN_7B, "v5e:2x2", (1, 1, 4), 16, 1024, "prefill"),
    Case("0.5B step, 2 rows × 1k", QWEN_05B, "h100:8", (1, 8, 1), 16, 1024),
    Case("0.5B step, 1 row × 32k", QWEN_05B, "h100:8", (1, 8, 1), 8, 32_768),
    Case("7B step, 2 rows × 1k", QWEN_7B, "h100:8", (1, 8, 1), 16, 1024),
    Case("7B decode, 64 × 2k", QWEN_7B, "h100:8", (2, 1, 4), 64, 2048, "decode"),
)


def run_of(case: Case) -> tuple[RunSettings, Task]:
    """Returns the settings and the task of a run whose programs are of a case's sizes."""
    config = base.get_config()
    shape = dict(case.model)
    vocab = shape.pop("vocab")
    config.model.update({**shape, "dtype": "bfloat16", "remat": case.remat})
    config.warm_up.steps = 0
    config.algorithm.name = "grpo"
    config.optimizer.updates_per_batch = 1
    data, fsdp, tensor = case.mesh
    config.trainer.update(
        {"group_size": 4, "groups_per_step": case.rows, "microbatch_rows": case.rows}
    )
    config.trainer.mesh.update({"data": data, "fsdp": fsdp, "tensor": tensor})
    config.explorer.mesh.update({"data": data * fsdp, "tensor": tensor})
    config.rollout.slots = case.rows
    config.workdir = "/nowhere"
    tokenizer = SimpleNamespace(vocab_size=vocab, eos_ids=(0,), decode=None)
    task: Any = SimpleNamespace(
        tokenizer=tokenizer,
        row_tokens=case.tokens,
        max_completion_tokens=case.tokens // 2,
        max_drawn_tokens=case.tokens // 2,
    )
    return read_settings(config.to_dict()), cast(Task, task)


def measure(case: Case) -> dict[str, Any]:
    """Compiles a case; returns what a line of the table says."""
    settings, task = run_of(case)
    where = target(case.target)
    trains = case.program == "step"
    layout = programs.layout_on(settings, "trainer" if trains else "explorer", where.devices())
    if trains:
        program = programs.train_step(settings, task, layout)
        planned = estimate.step_estimate(settings, task, where.chip.platform)
    else:
        offered = programs.rollout_programs(settings, task, layout)
        program = next(one for one in offered if one.name == case.program)
        platform = where.chip.platform
        if case.program == "decode":
            planned = estimate.decode_estimate(settings, task, platform)
        else:
            prompts, tokens = program.sizes
            planned = estimate.prefill_estimate(settings, task, platform, (prompts, tokens))
    line: dict[str, Any] = {
        "case": case.name, "target": case.target, "mesh": case.mesh,
        "planned_gb": round(planned.peak / 1e9, 3),
    }  # fmt: skip
    started = time.process_time()
    try:
        reading = Reading.of(program.lower().compile())
    except Exception as error:
        return line | {"error": str(error)[:200]}
    use = reading.memory
    alone, hidden = link_bytes(reading, settings.rollout.chunk_tokens)
    line |= {
        "peak_gb": round(use.peak / 1e9, 3),
        "temporaries_gb": round(use.temporaries / 1e9, 3),
        "compile_cpu_s": round(time.process_time() - started),
        "link_gb": round((alone + hidden) / 1e9, 3),
        "hidden_share": round(hidden / max(alone + hidden, 1.0), 2),
        "largest_mb": round(max((one.bytes for one in reading.collectives), default=0) / 1e6),
    }
    if trains:
        line["step_s"] = step_secs(settings, task, layout, where, reading)[0]
    elif case.program == "decode":
        line["token_s"] = decode_secs(settings, task, layout, where, program, reading)[0]
    return line


def main(_: list[str]) -> None:
    """Compiles the cases of a kind of chip, and prints a line of JSON for each."""
    for case in CASES:
        if case.target.startswith(TARGET.value) and ONLY.value in case.name:
            text = json.dumps(measure(case), ensure_ascii=False)
            print(text, flush=True)
            if OUT.value:
                with open(OUT.value, "a") as file:
                    file.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
