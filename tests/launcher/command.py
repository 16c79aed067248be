"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
