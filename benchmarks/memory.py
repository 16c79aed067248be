"""Resident memory of a run's processes from start to end, beside the estimate of `plan`.

    python benchmarks/memory.py --config=configs/arithmetic.py [--config.…=…]

Runs the launcher with these flags, and looks at each role's process every 0.2 s. Prints for each
its peak (VmHWM), and its growth in a trainer step over the second half of the run. A peak includes
compilation, unless the compiled programs are in the cache.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rl_sync.workdir import Workdir

_LOOK_SECS = 0.2


class Look(NamedTuple):
    """One look at a role's process, in kilobytes."""

    step: int
    resident: int
    peak: int


def roles_of(workdir: Path) -> dict[str, Path]:
    """Finds the processes of a run, by role."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue  # It has ended.
        role = next((word[7:] for word in words if word.startswith("--role=")), None)
        if role is not None and f"--workdir={workdir}" in words:
            found[role] = process
    return found


def look(process: Path, step: int) -> Look | None:
    """Reads the memory of a process from the kernel; None if it has ended."""
    try:
        status = (process / "status").read_text()
    except OSError:
        return None
    found = [re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "VmHWM")]
    return Look(step, *(int(match[1]) for match in found if match)) if all(found) else None


def steps_of(workdir: Path) -> int:
    """Counts the trainer steps so far."""
    consumed = Workdir(workdir).consumed
    return consumed.read_text().count("\n") if consumed.exists() else 0


def growth_bytes(looks: list[Look]) -> float:
    """Returns the growth in bytes of a trainer step, over the second half of the steps."""
    late = [one for one in looks if one.step >= looks[-1].step / 2]
    steps = late[-1].step - late[0].step
    return 1024 * (late[-1].resident - late[0].resident) / steps if steps else 0.0


def main(flags: list[str]) -> int:
    planned = subprocess.run(
        [sys.executable, "-m", "launcher", "plan", *flags], capture_output=True, text=True
    )
    print(planned.stdout[planned.stdout.find("Memory per device") :])
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory) / "run"
        command = [sys.executable, "-m", "launcher", *flags, f"--config.workdir={workdir}"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        looks: dict[str, list[Look]] = {}
        while run.poll() is None:
            time.sleep(_LOOK_SECS)
            step = steps_of(workdir)
            for role, process in roles_of(workdir).items():
                if (seen := look(process, step)) is not None:
                    looks.setdefault(role, []).append(seen)
        for role, of in sorted(looks.items()):
            peak = max(one.peak for one in of) * 1024
            print(f"{role:<20} peak {peak / 1e9:.2f} GB, {growth_bytes(of):+,.0f} bytes a step")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
