"""Programs a second in each sandbox, beside a bare interpreter.

    python benchmarks/sandbox.py [--layers bubblewrap landlock wasm] [--rounds 7] [--programs 40]

In each round, every contestant runs the same small program that reads a line and prints it, once
for each of `--programs` tests: first one at a time (the milliseconds of a program), then as many at
a time as there are cores (programs a second). The bare interpreter, `python -I -S main.py` as a
subprocess, runs before each contestant, so that both see the same load of the machine; the
overhead is a contestant's time less that of the bare interpreter just before. `a call and its
examiner` is a test that calls a function: two sandboxes at a time. A sandbox that does not work
here is left out, with a line that says why.

Every figure is minimum / median / maximum over the rounds.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from rl_sync.sandbox.examination import ProgramTests, examine
from rl_sync.sandbox.layer import SandboxError, SandboxLayer, interpreter
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox
from rl_sync.sandbox.sandbox_choice import LAYERS

PROGRAM = "if __name__ == '__main__': print(input())\ndef f(x): return x\n"
LINE = b"hello\n"
LIMITS = ProgramLimits(wall_secs=60.0)


def bare(folder: str) -> None:
    """Runs the program as a subprocess without a sandbox."""
    command = [interpreter(), "-I", "-S", f"{folder}/main.py"]
    result = subprocess.run(command, input=LINE, capture_output=True, check=True)
    assert result.stdout == LINE


def confined(sandbox: Sandbox, folder: str) -> None:
    """Runs the program in a sandbox."""
    assert sandbox.run(folder, ("script", "main.py"), LINE).stdout == LINE


def examined(sandbox: Sandbox, folder: str) -> None:
    """Tests a call of the program's function."""
    del folder
    examination = ProgramTests([{"call": "f", "args": [1], "expected": 1}])
    (verdict,) = examine(sandbox, PROGRAM, examination, time.monotonic() + 60)
    assert verdict.outcome == "passed", verdict


def seconds(action: Callable[[], None], programs: int, workers: int) -> float:
    """Returns the time of some programs, `workers` at a time."""
    started = time.perf_counter()
    if workers == 1:
        for _ in range(programs):
            action()
    else:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(action) for _ in range(programs)]:
                future.result()
    return time.perf_counter() - started


def spread(values: list[float], digits: int = 1) -> str:
    """Formats the minimum, median and maximum."""
    three = (min(values), statistics.median(values), max(values))
    return " / ".join(f"{value:.{digits}f}" for value in three)


def measure(name: str, action: Callable[[str], None], folder: str, options) -> None:
    """Prints the figures of one contestant, beside the bare interpreter's."""
    cores, programs = os.cpu_count() or 1, options.programs
    overheads, latencies, rates, ratios = [], [], [], []
    action(folder)
    for _ in range(options.rounds):
        alone = seconds(lambda: bare(folder), programs, 1) / programs
        own = seconds(lambda: action(folder), programs, 1) / programs
        overheads.append(1e3 * (own - alone))
        latencies.append(1e3 * own)
        both = seconds(lambda: bare(folder), programs, cores)
        own_both = seconds(lambda: action(folder), programs, cores)
        rates.append(programs / own_both)
        ratios.append(both / own_both)
    print(f"| {name} | {spread(latencies)} | {spread(overheads)} |", end="")
    print(f" {spread(rates)} | {spread(ratios, 2)} |", flush=True)


def main() -> None:
    """Measures the layers that are installed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--programs", type=int, default=40)
    options = parser.parse_args()
    print("| contestant | ms a program | overhead, ms | programs a second, all cores | of bare |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/main.py", "w") as file:
            file.write(PROGRAM)
        os.chmod(folder, 0o755)
        measure("bare interpreter", bare, folder, options)
        for kind in options.layers:
            for layer in list(LAYERS[kind]())[:2]:
                try:
                    measure_layer(layer, folder, options)
                except SandboxError as error:
                    print(f"{layer.name} is left out: {error}", file=sys.stderr, flush=True)


def measure_layer(layer: SandboxLayer, folder: str, options) -> None:
    """Prints the figures of a layer: a program, and a call with its examiner."""
    layer.prepare()
    sandbox = Sandbox(layer, LIMITS)
    measure(layer.name, lambda path: confined(sandbox, path), folder, options)
    name = f"{layer.name}: a call and its examiner"
    measure(name, lambda path: examined(sandbox, path), folder, options)


if __name__ == "__main__":
    main()
