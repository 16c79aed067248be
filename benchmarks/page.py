"""Cost of the page for the run beside it, in turns with runs without a page.

    python benchmarks/page.py [--config=configs/arithmetic.py] [--steps=40] [--seeds=3]

For each seed a run is made without a page, and one with `launch.page=true` and a reader that does
what an open browser does: it follows the events, and loads the overview again after each change,
at most every two seconds. It prints the median seconds of a trainer step of both, their ratio, and
the CPU time of the page as a share of what the machine's cores could compute in the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.metrics import read_metrics

_RELOAD_SECS = 2.0
_TIMEOUT_SECS = 30


class Cost(NamedTuple):
    """A run: median seconds of its trainer steps, CPU seconds of its page, and its length."""

    step_secs: float
    page_secs: float
    run_secs: float


def read_as_a_browser(address: str, ended: threading.Event) -> None:
    """Follows the events of a page, and loads the overview after each change."""
    with (
        contextlib.suppress(OSError),  # The page ends with the run.
        urllib.request.urlopen(f"{address}events", timeout=_TIMEOUT_SECS) as events,
    ):
        for line in events:
            if ended.is_set():
                return
            if line.startswith(b"data:"):
                urllib.request.urlopen(address, timeout=_TIMEOUT_SECS).read()
                time.sleep(_RELOAD_SECS)


def cpu_secs(process: int) -> float:
    """Returns the seconds that a process has computed so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_of(workdir: Path) -> int | None:
    """Finds the process of a run's page by its command line."""
    wanted = ["rl_sync.launcher.processes.child", "page", f"--workdir={workdir}"]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if [word for word in words if word in wanted] == wanted:
                return int(path.parent.name)
    return None


def measured(arguments: argparse.Namespace, workdir: Path, seed: int, with_page: bool) -> Cost:
    """Makes a run, and measures it."""
    command = [sys.executable, "-m", "launcher", f"--config={arguments.config}"]
    command += [f"--config.workdir={workdir}", f"--config.seed={seed}"]
    command.append(f"--config.trainer.steps={arguments.steps}")
    command.append(f"--config.launch.page={str(with_page).lower()}")
    ended, spent, found = threading.Event(), 0.0, None
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:

        def follow() -> None:
            assert run.stdout is not None
            for line in run.stdout:
                if address := re.search(r"The page is at (\S+)", line):
                    threading.Thread(
                        target=read_as_a_browser, args=(address[1], ended), daemon=True
                    ).start()

        reader = threading.Thread(target=follow)
        reader.start()
        while run.poll() is None:
            found = found or (page_of(workdir) if with_page else None)
            spent = max(spent, cpu_secs(found)) if found else 0.0
            time.sleep(0.2)
        ended.set()
        reader.join()
    if run.returncode or (with_page and not spent):
        raise SystemExit(f"The run in {workdir} failed, or had no page.")
    steps = [line["step_secs"] for line in read_metrics(workdir, "rl")]
    return Cost(statistics.median(steps), spent, time.monotonic() - started)


def main() -> None:
    """Measures, and prints a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    shares, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            alone, beside = (
                measured(arguments, Path(folder, f"{seed}-{with_page}"), seed, with_page)
                for with_page in (False, True)
            )
            shares.append(beside.page_secs / (beside.run_secs * (os.cpu_count() or 1)))
            ratios.append(beside.step_secs / alone.step_secs)
            print(
                f"seed {seed}: {alone.step_secs:.3f} s a step without the page,"
                f" {beside.step_secs:.3f} with it ({ratios[-1]:.3f}×); the page computed"
                f" {beside.page_secs:.1f} s of {beside.run_secs:.0f}, {shares[-1]:.2%} of the CPU",
                flush=True,
            )
    for name, of in (("ratio of steps", ratios), ("share of the cores", shares)):
        print(
            f"{name}, least / median / greatest: {min(of):.4f} / {statistics.median(of):.4f} /"
            f" {max(of):.4f}"
        )


if __name__ == "__main__":
    main()
