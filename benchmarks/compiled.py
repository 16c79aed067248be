"""Programs of real models, compiled for TPUs and GPUs on a machine without them.

    pip install -e '.[tpu]' && python benchmarks/compiled.py --target=v5e
    pip install -e '.[cuda]' && python benchmarks/compiled.py --target=h100

Each case is compiled from shapes alone, with GRPO and its reference model, in bfloat16. A line has
the compiler's bytes a device beside those that `plan` estimates, CPU seconds of compilation, what
travels between the devices, and the least times by the roofline model. Nothing is run. One case
takes one to four CPU minutes: `--only=PART` takes the cases whose names have PART. `--renew` writes
the figures to the table that the tests compare with.
"""

from __future__ import annotations

import json

import jax
from absl import app, flags
from compiled_cases import CASES, compiled, planned, renew

TARGET = flags.DEFINE_string("target", "v5e", "The kind of chip whose cases are compiled.")
ONLY = flags.DEFINE_string("only", "", "A part of the names of the cases to compile.")
ESTIMATE_ONLY = flags.DEFINE_bool("estimate_only", False, "Compile nothing: print the estimates.")
OUT = flags.DEFINE_string("out", "", "A file for the results, a line of JSON each.")
RENEW = flags.DEFINE_bool("renew", False, "Write the figures to compiled_figures.jsonl.")


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
        if RENEW.value and "peak_gb" in line:
            renew(line)


if __name__ == "__main__":
    app.run(main)
