"""Runs while they go on: their processes, and how far they are."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path

from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir

TIMEOUT_SECS = 240


def wait_for(condition, process):
    deadline = time.monotonic() + TIMEOUT_SECS
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "the run does not get there"
        time.sleep(0.1)


def reached(workdir: Path, phase: str) -> bool:
    """Says whether SFT is over, or a few RL steps are done."""
    least = {"sft": 1, "rl": 3}[phase]
    return Workdir(workdir).metrics.exists() and len(read_metrics(workdir, phase)) >= least


def processes_of(workdir: Path) -> dict[str, int]:
    """Finds the run's living processes, by role, from their command lines and logs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        words = dict(word[2:].split("=", 1) for word in command if re.match("--[a-z]+=", word))
        if words.get("workdir") == str(workdir) and "role" in words:
            process = words.get("process", "0")
            name = words["role"] + (f"/{process}" if process != "0" else "")
            found[name] = int(entry.name)
        if "rl_sync.replay.embedded_server" in command:
            with contextlib.suppress(OSError):
                if (entry / "fd/2").readlink() == Path(Workdir(workdir).log("replay")):
                    found["replay"] = int(entry.name)
    return found


def descendants(process: int) -> set[int]:
    """Returns the processes that a process has started, and those that these have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
    found: set[int] = set()
    while more := {one for one, of in parents.items() if of in {process, *found}} - found:
        found |= more
    return found


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=TIMEOUT_SECS)
    return output
