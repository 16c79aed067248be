"""Renders files in this process, and finds the tools that check them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_sync.launcher.__main__ import main
from tests.launcher.command import ROOT


def render(folder: Path, *words: str) -> dict[str, str]:
    """Renders the config `arithmetic`, and returns the files by name."""
    out, before = folder / "rendered", (os.getcwd(), list(sys.path))
    flags = [f"--out={out}", "--overwrite", f"--config.workdir={folder / 'run'}"]
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(["render", "--config=arithmetic", *words, *flags])
    finally:
        os.chdir(before[0])
        sys.path[:] = before[1]
    assert status == 0
    return {path.name: path.read_text() for path in out.iterdir()}


def accepts(tool: str, package: str, *words: str | Path) -> tuple[bool, str]:
    """Runs a tool; returns whether it accepts, and its output. Skips the test without the tool."""
    found = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{tool} is not installed: pip install {package}")
    done = subprocess.run(
        [found, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr
