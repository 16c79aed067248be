"""Table of hostile programs and sandboxes: which programs are held.

    python benchmarks/hostile.py [--sandboxes NAME …] [--programs WORD] [--public-python PATH]

Judges each program of `tests/sandbox/hostile.py` in each sandbox that works here, and prints a
table in Markdown. As root, it starts itself anew with fewer rights for the sandboxes of ordinary
users; those need a Python that every user may run. `held`: the program was judged and scored 0.
`THROUGH`: it got what it must not. `unknown`: it was not judged. `–`: not tried, as the sandbox
does not run the language, or as the program would do harm without a sandbox.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rl_sync.rewards import code  # noqa: E402
from rl_sync.rewards.judgement import Completion, Judgement  # noqa: E402
from rl_sync.sandbox.layer import SandboxError  # noqa: E402
from rl_sync.sandbox.unconfined import Unconfined  # noqa: E402
from tests.sandbox.hostile import Hostile, battery, facts, filled  # noqa: E402

SANDBOXES = {
    "bubblewrap, root": ("bubblewrap", ()),
    "bubblewrap, root in a container": ("bubblewrap", ("--bounding-set", "-sys_admin")),
    "bubblewrap, a user": ("bubblewrap", ("--reuid=65534", "--regid=65534", "--clear-groups")),
    "landlock, root": ("landlock", ()),
    "landlock, a user": ("landlock", ("--reuid=65534", "--regid=65534", "--clear-groups")),
    "wasm": ("wasm", ()),
    "none": ("none", ()),
}
"""Columns of the table: a layer, and the options of `setpriv` for the user that judges."""
LIMITS: dict[str, Any] = {
    "test_secs": 4.0,
    "total_secs": 16.0,
    "memory_mib": 512,
    "output_kib": 256,
    "processes": 64,
}


def judge(program: Hostile, layer: str, values: Mapping[str, str]) -> Judgement:
    """Judges a program as a completion."""
    reward = code.Code(layer="auto" if layer == "none" else layer, **LIMITS)
    block = f"````{program.language}\n{filled(program, values)}\n````"
    return reward(program.row, Completion(block))


def outcome(program: Hostile, layer: str, values: Mapping[str, str]) -> str:
    """Returns the table's word for a program in a sandbox."""
    if layer == "none" and (program.kind == "greed" or "kills" in program.name):
        return "–"
    started = time.monotonic()
    judgement = judge(program, layer, values)
    if not judgement.is_known:
        return "–" if " only, and programs are in " in judgement.why else "unknown"
    return "THROUGH" if judgement.score else "held" if time.monotonic() - started < 60 else "slow"


def column(layer: str, programs: list[Hostile]) -> dict[str, str]:
    """Judges all programs in a layer, a few at a time."""
    if layer == "none":
        code.choose = lambda *_: Unconfined()
    else:
        code.choose(layer)
    values = facts()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda program: outcome(program, layer, values), programs)
        return {program.name: one for program, one in zip(programs, outcomes, strict=True)}


def elsewhere(name: str, options: argparse.Namespace) -> dict[str, str] | str:
    """Judges in a process with fewer rights; returns the reason if that is not possible."""
    layer, rights = SANDBOXES[name]
    python = options.public_python if rights else sys.executable
    if rights and os.geteuid() != 0:
        return "only root can judge as another user"
    command = [*(["setpriv", *rights] if rights else []), python, __file__, "--only", layer]
    done = subprocess.run(
        [*command, "--programs", options.programs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages()])},
        capture_output=True,
        text=True,
        check=False,
        cwd="/tmp",
    )
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def packages() -> list[str]:
    """Returns the folders of this environment's packages, for another interpreter."""
    return [path for path in sys.path if path.endswith("-packages")]


def main() -> None:
    """Prints the table, and a summary of each sandbox."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sandboxes", nargs="+", default=list(SANDBOXES), choices=list(SANDBOXES))
    parser.add_argument("--programs", default="", help="only those with this word in their names")
    parser.add_argument("--public-python", default="/usr/bin/python3")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    programs = [one for one in battery() if options.programs in one.name]
    if options.only:
        try:
            print(json.dumps(column(options.only, programs)))
        except SandboxError as error:
            sys.exit(str(error))
        return
    columns = {}
    for name in options.sandboxes:
        found = elsewhere(name, options)
        if isinstance(found, str):
            print(f"{name}: {found}", file=sys.stderr)
            continue
        columns[name] = found
        print(f"{name}: {dict(collections.Counter(found.values()))}", file=sys.stderr, flush=True)
    print(f"| program | language | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 2) + "|")
    for one in programs:
        cells = [columns[name][one.name] for name in columns]
        print(f"| {one.name} | {one.language} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
