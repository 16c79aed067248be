"""Counts the lines and functions of the sources, and those that a run executes.

    python benchmarks/size.py                                      # the sources only
    python benchmarks/size.py --config=configs/arithmetic.py …     # also a run of these settings

Every process of the run notes once each function of the sources that it enters, and the trainer
notes its stack at its first call of the compiled step, which `--frames` lists. A run takes
Python 3.12.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("rl_sync", "launch")
MOST_LINES, MOST_PARAMETERS = 50, 5
# Each process of the run imports this module at its start, as Python does with `sitecustomize`.
NOTING = """
import os, sys

root, out = {root!r}, {out!r}
monitoring = sys.monitoring
monitoring.use_tool_id(monitoring.PROFILER_ID, "size")

def note(file, lines):
    with open(os.path.join(out, f"{{os.getpid()}}.{{file}}"), "a", encoding="utf-8") as opened:
        opened.writelines(line + "\\n" for line in lines)

def started(code, offset):
    place = os.path.realpath(code.co_filename)
    if any(place.startswith(os.path.join(root, top, "")) for top in ("rl_sync", "launch")):
        note("functions", [f"{{place}}\\t{{code.co_qualname}}\\t{{code.co_firstlineno}}"])
    elif code.co_qualname == "Compiled.__call__" and place.endswith("/jax/_src/stages.py"):
        stack, frame = [], sys._getframe(1)
        while frame is not None:
            stack.append(f"{{frame.f_code.co_filename}}\\t{{frame.f_code.co_qualname}}")
            frame = frame.f_back
        if not any("StepsInFlight.take" in line for line in stack):
            return None
        note("frames", stack[::-1])
    return monitoring.DISABLE

monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, started)
monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
"""


class Executed(NamedTuple):
    """What a run executed: functions as (file, name, line), and frames as (file, name)."""

    functions: set[tuple[str, ...]]
    frames: list[tuple[str, ...]]


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Returns the text and the tree of each source file, without generated ones."""
    for path in sorted({p.resolve() for top in SOURCES for p in (ROOT / top).rglob("*.py")}):
        if not path.name.endswith("_pb2.py"):
            text = path.read_text()
            yield text, ast.parse(text)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of a function's parameters, without `self` and `cls`."""
    of = function.args
    named = [one.arg for one in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return len([name for name in named if name not in {"self", "cls"}])


def sizes() -> dict[str, int]:
    """Returns the figures of the sources."""
    files = [*parsed()]
    nodes = [node for _, tree in files for node in ast.walk(tree)]
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(one.end_lineno or one.lineno) - one.lineno + 1 for one in functions]
    return {
        "lines": sum(len(text.splitlines()) for text, _ in files),
        "files": len(files),
        "functions": len(functions),
        f"functions over {MOST_LINES} lines": sum(one > MOST_LINES for one in lengths),
        f"functions over {MOST_PARAMETERS} parameters": sum(
            parameters(one) > MOST_PARAMETERS for one in functions
        ),
        "uses of Any": sum(isinstance(one, ast.Name) and one.id == "Any" for one in nodes),
    }


def execute(words: list[str]) -> Executed:
    """Runs the launcher with a command line, and returns what its processes noted.

    Raises:
      CalledProcessError: the run failed.
    """
    with tempfile.TemporaryDirectory() as noted:
        text = NOTING.format(root=str(ROOT), out=noted)
        (Path(noted) / "sitecustomize.py").write_text(text)
        paths = [noted, str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "launcher", *words]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        entered = [_lines(path) for path in Path(noted).glob("*.functions")]
        stacks = [_lines(path) for path in Path(noted).glob("*.frames")]
    assert stacks, "no process has noted its call of the trainer's step"
    return Executed({one for lines in entered for one in lines}, stacks[0])


def _lines(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()]


def main() -> None:
    """Prints the figures as a table."""
    parser = argparse.ArgumentParser(
        description="Sizes of the sources, and of what a run executes."
    )
    parser.add_argument(
        "--frames", action="store_true", help="list the frames down to the trainer's step"
    )
    arguments, words = parser.parse_known_args()
    figures = sizes()
    if words:
        run = execute(words)
        ours = [file for file, _ in run.frames if Path(file).is_relative_to(ROOT)]
        called = [one for one in run.functions if one[1] != "<module>"]
        figures["functions executed"] = len(called)
        figures["files with executed functions"] = len({file for file, *_ in called})
        figures["modules loaded"] = len({file for file, *_ in run.functions})
        figures["frames down to the step"] = len(run.frames)
        figures["frames of the sources"] = len(ours)
        for file, name in run.frames if arguments.frames else []:
            print(f"{os.path.relpath(file, ROOT)}: {name}")
    print("| figure | value |\n|---|---|")
    for figure, value in figures.items():
        print(f"| {figure} | {value} |")


if __name__ == "__main__":
    main()
