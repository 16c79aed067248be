"""A second run reads the programs that the first had to compile, and computes the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_sync.workdir import Workdir
from tests.runs.conftest import TIMEOUT_SECS, RunRecord, launch

pytestmark = pytest.mark.nightly

LARGE = ("decode_chunk", "step", "sft_step")


def large(cache: Path) -> set[str]:
    """Returns the keys of programs whose compilation always takes long enough to keep them."""
    return {entry.name for name in LARGE for entry in cache.glob(f"jit_{name}-*-cache")}


def run(workdir: Path, cache: Path) -> RunRecord:
    short = {"trainer.steps": 2, "sft.steps": 1, "replay.backend": "embedded"}
    flags = [f"--config.{name}={value}" for name, value in short.items()]
    flags.append(f"--config.launch.compilation_cache={cache}")
    process = launch(*flags, workdir=workdir, variables={})
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    assert process.returncode == 0, output
    assert f"Compiled programs: {cache}\n" in output
    return RunRecord(Workdir(workdir), output)


def programs(record: RunRecord, role: str) -> tuple[int, int]:
    """Returns the number of programs that a role needed, and the number found in the cache."""
    log = record.workdir.log(role).read_text()
    assert "persistent compilation cache" not in log, "a warning of JAX's"
    (found,) = re.findall(r"Of (\d+) programs the compilation cache had (\d+)\.", log)
    return int(found[0]), int(found[1])


def test_a_second_run_has_what_the_first_compiled_and_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    cache = tmp_path / "programs"
    first, kept = run(tmp_path / "first", cache), large(cache)
    second = run(tmp_path / "second", cache)
    assert second.digest == first.digest
    assert {name.split("-")[0] for name in kept} == {f"jit_{name}" for name in LARGE}
    assert large(cache) == kept, "something was compiled again"
    for role in ("trainer", "explorer1"):
        needed, read = programs(first, role)
        again, read_again = programs(second, role)
        assert again == needed
        assert read_again > read
