"""One table about the accelerator of this machine: is all of it right, and how fast is it?

    python benchmarks/device.py [--minutes=9] [--parts=tokens,decode] [--small] [--smollm2=DIR]
                                [--out=device]

For a machine with a GPU or a TPU, JAX for it, and no network. Parts run one after the other, the
most important first, each in a process of its own: the main job in one process and in two, greedy
tokens beside the CPU's, decoding, a trainer step, attention kernels, transfers of weights. Peaks
of memory stand beside those that `plan` computes. The table is written after every finding, as
`device.md` and `device.json`. A part that fails says why in one line; one that does not fit in what
is left of the time is skipped. `--small` has shapes that any CPU can run, to try all parts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from types import FrameType

from device_parts.finding import Finding, PartOptions
from device_parts.part_process import DONE, PartProcess, serve
from device_parts.part_table import PARTS, Part
from device_parts.result_table import MACHINE, ResultTable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

UNUSED = {
    "datasets", "jinja2", "matplotlib", "pillow", "pyarrow", "pyseccomp", "starlette",
    "transformers", "uv", "uvicorn",
}  # fmt: skip
"""Dependencies of the project that no part imports."""

_SPARE_SECS = 5.0
_MINUTES = 9.0


class _EndedError(Exception):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main() -> int:
    """Measures the chosen parts; returns 0 if all of them are done."""
    arguments = _arguments()
    options = PartOptions(arguments.small, arguments.smollm2)
    if arguments.run is not None:
        return serve(PARTS[arguments.run].measure, options)
    if missing := missing_packages():
        sys.exit(
            f"{len(missing)} packages are missing or too old. On a machine with a network:\n"
            f"    pip install {' '.join(repr(one) for one in missing)}\n"
            "Without one, bring their wheels: pip download … there, then pip install --no-index"
            " --find-links=DIRECTORY … here."
        )
    names = chosen(arguments.parts, options)
    about = {name: PARTS[name].about for name in names}
    table = ResultTable(arguments.out, about, [Path(sys.executable).name, *sys.argv])
    print(f"The table: {table.files[0]} and {table.files[1]}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise)
    try:
        run_parts(names, arguments, table)
    except _EndedError as error:
        table.end(f"ended by {error}")
        print(f"\nEnded by {error}; the table has what was found.", flush=True)
        return 128 + error.number
    table.end("complete")
    return 0 if set(table.statuses().values()) == {DONE} else 1


def run_parts(names: list[str], arguments: argparse.Namespace, table: ResultTable) -> None:
    """Runs parts one after the other, within the total time."""
    began, budget = time.monotonic(), 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="device-") as logs:
        for name in names:
            part = PARTS[name]
            left = budget - (time.monotonic() - began) - _SPARE_SECS
            if left < part.least_secs:
                status = (
                    f"skipped: {max(0.0, left):.0f} s are left, and it needs {part.least_secs:.0f}"
                )
                table.mark(name, status)
                print(f"\n{name}: {status}", flush=True)
                continue
            print(f"\n{name}: {part.about}", flush=True)
            table.mark(name, "running, or killed")
            started = time.monotonic()
            process = PartProcess(_command(name, arguments), Path(logs, name), _environment(part))

            def add(finding: Finding, name: str = name) -> None:
                table.add(name, finding)
                value = finding.value if isinstance(finding.value, str) else f"{finding.value:,.4g}"
                beside = f" ({finding.beside})" * bool(finding.beside)
                print(f"  {finding.name}: {value} {finding.unit}{beside}", flush=True)

            try:
                status = process.run(min(left, _longest(part, arguments.minutes)), add)
            finally:
                process.end()
            table.mark(name, status, time.monotonic() - started)
            print(f"  {status}, {time.monotonic() - started:.0f} s", flush=True)


def chosen(parts: str, options: PartOptions) -> list[str]:
    """Returns the names of the parts to run, in their order.

    Raises:
      SystemExit: a name is no part.
    """
    wanted = parts.split(",") if parts else [name for name in PARTS if name != "smollm2"]
    if options.smollm2 is not None:
        wanted.append("smollm2")
    if unknown := [name for name in wanted if name not in PARTS]:
        sys.exit(f"--parts={parts}: {unknown[0]!r} is not one of {', '.join(PARTS)}.")
    if "smollm2" in wanted and options.smollm2 is None:
        sys.exit("The part smollm2 needs --smollm2=DIR, which benchmarks/real_model.py makes.")
    return [name for name in PARTS if name in {MACHINE, *wanted}]


def missing_packages() -> list[str]:
    """Returns requirements that this Python does not meet, as pip takes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    missing = []
    for requirement in project["dependencies"]:
        name, _, least = requirement.partition(">=")
        if name in UNUSED:
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
            continue
        if _release(found) < _release(least):
            missing.append(requirement)
    return missing


def _release(version: str) -> list[int]:
    """Returns the numbers of a version: `0.12.0.1` as [0, 12, 0, 1]."""
    return [int(number) for number in re.findall(r"\d+", version)]


def _longest(part: Part, minutes: float) -> float:
    """Returns the seconds after which a part is ended: more, if there is more time in all."""
    return part.most_secs * max(1.0, minutes / _MINUTES)


def _command(name: str, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, str(HERE / "device.py"), f"--run={name}"]
    command += ["--small"] * arguments.small
    return command + [f"--smollm2={arguments.smollm2}"] * (arguments.smollm2 is not None)


def _environment(part: Part) -> dict[str, str]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        "PYTHONPATH": os.pathsep.join(path),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": str(part.memory_share),
        "HF_HUB_OFFLINE": "1",
    }
    return {**os.environ, **given}


def _raise(number: int, frame: FrameType | None) -> None:
    raise _EndedError(number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for all parts together")
    parser.add_argument("--parts", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--small", action="store_true", help="shapes that any CPU can run")
    parser.add_argument(
        "--smollm2", type=lambda text: Path(text).resolve(), help="what real_model.py made"
    )
    parser.add_argument("--out", type=Path, default=Path("device"), help="without an ending")
    parser.add_argument("--run", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
