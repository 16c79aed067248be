"""Compiled programs of real models are no worse than in the table of figures."""

import importlib.util
import os
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "compiled_cases.py"
_SPEC = importlib.util.spec_from_file_location("compiled_cases", _PATH)
figures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(figures)

# Most compile in ten CPU seconds, the step in forty.
STEP = "qwen2.5-0.5b step, h100:8 1x8x1, 16 x 1024, full"
QUICK = {
    "qwen2.5-0.5b decode, v5e:2x2 2x1x2, 64 x 2048",
    "gemma-3-4b decode, v5e:2x2 1x1x4, 64 x 4096",
    "llama-3.1-8b decode, h100:4 1x1x4, 64 x 4096",
    "qwen2.5-0.5b decode, h100:1 1x1x1, 64 x 1024",
    STEP,
}
TABLE = figures.read_table()
ALL = os.environ.get("COMPILED_FIGURES") == "all"


@pytest.mark.aot
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name == STEP else [])
        for name in TABLE
        if ALL or name in QUICK
    ],
)
def test_a_program_is_no_worse_than_in_the_table(name, devices):
    (case,) = (case for case in figures.CASES if str(case) == name)
    devices(case.target)
    before, present = TABLE[name], figures.versions(case)
    if present != before["versions"]:
        pytest.skip(f"The table is of {before['versions']}, and installed are {present}.")
    now = figures.planned(case) | figures.compiled(case)
    assert "error" not in now, now["error"]
    assert not figures.regressions(now, before)
