"""Whole runs by the launcher: what they learn, their pace, and their time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device_parts.finding import CheckFailedError, Finding, PartOptions, median
from rl_sync.records.metrics import read_metrics

_ROOT = Path(__file__).resolve().parents[2]
_CONFIG = "configs/arithmetic.py"
_PASSED = 0.98
"""Accuracy that the main job passes."""

_FEW = {
    "sft.steps": 40,
    "trainer.steps": 3,
    "trainer.groups_per_step": 16,
    "evaluation.every_steps": 0,
    "evaluation.problems": 64,
}
_COLOCATED = {"launch.colocate": "true"}
_UNCOUNTED_STEPS = 2  # They compile.


def colocated(options: PartOptions) -> Iterator[Finding]:
    """Makes the main job's run in one process, in which roles take turns on one device."""
    return _main_job(options, {**_COLOCATED, "launch.share_devices": "true"})


def in_processes(options: PartOptions) -> Iterator[Finding]:
    """Makes the main job's run in two processes, of which each has a GPU or they share one.

    Raises:
      CheckFailedError: the device is a TPU, whose chips belong to one process.
    """
    # A process of its own looks, since this one would keep the device.
    found = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.default_backend(), jax.device_count())"],
        capture_output=True,
        text=True,
        check=True,
    )
    platform, count = found.stdout.split()[-2:]
    if platform == "tpu":
        raise CheckFailedError("the chips of a TPU belong to one process at a time")
    if platform == "cpu" or int(count) > 1:
        visible = {} if platform == "cpu" else {"CUDA_VISIBLE_DEVICES": "0,1"}
        return _main_job(options, {}, visible)
    return _main_job(options, {"sync.transfer": "checkpoint"})


def _main_job(
    options: PartOptions, settings: dict[str, Any], environment: dict[str, str] | None = None
) -> Iterator[Finding]:
    """Makes a run, and checks what it has learned."""
    given = {**(_FEW if options.small else {}), **settings}
    for finding in run(_CONFIG, given, environment):
        yield finding
        if finding.name == "accuracy after RL" and not options.small:
            assert not isinstance(finding.value, str)
            if finding.value < 100 * _PASSED:
                raise CheckFailedError(
                    f"the run reaches {finding.value:.1f} %, and on CPUs at least 98 %"
                )


def run(
    config: str, settings: dict[str, Any], environment: dict[str, str] | None = None
) -> Iterator[Finding]:
    """Makes a run, and yields its pace and its accuracy.

    Raises:
      RuntimeError: it failed; the message has the last line that it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder, "run")
        command = [sys.executable, "-m", "launcher", f"--config={config}"]
        command += [f"--config.{name}={value}" for name, value in settings.items()]
        command += [f"--config.workdir={workdir}", "--config.replay.backend=embedded"]
        command += ["--config.launch.compilation_cache="]
        started = time.monotonic()
        said = []
        with subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:  # The part's log has them also if the part is ended.
                print(line, end="", flush=True)
                said += [line.strip()] if line.strip() else []
        secs = time.monotonic() - started
        if process.returncode:
            errors = [line for line in said if "rror" in line]
            raise RuntimeError((errors or said or ["it wrote nothing"])[-1])
        evaluations, steps = read_metrics(workdir, "evaluation"), read_metrics(workdir, "rl")
    yield Finding("whole command", secs, "s", " ".join(f"{k}={v}" for k, v in settings.items()))
    ends = [one["time"] for one in steps]
    between = [after - before for before, after in itertools.pairwise(ends)]
    counted = between[_UNCOUNTED_STEPS:] or between
    each = f"{median(counted):.3g} s each" if counted else "too few to time them"
    yield Finding("trainer steps", str(len(steps)), beside=each)
    yield Finding("accuracy before RL", 100 * evaluations[0]["accuracy"], "%")
    yield Finding("accuracy after RL", 100 * evaluations[-1]["accuracy"], "%")
