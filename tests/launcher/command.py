"""The command line, in a process of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rl_sync.launcher.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def launcher(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m launcher` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "launcher", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Said(NamedTuple):
    """Result of a command line."""

    status: int
    out: str
    err: str


def said_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Runs a command line in this process."""
    capsys.readouterr()
    before = os.getcwd(), list(sys.path)
    os.chdir(ROOT)
    try:
        status = main(arguments)
    finally:
        os.chdir(before[0])
        sys.path[:] = before[1]
    return Said(status, *capsys.readouterr())
