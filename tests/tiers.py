"""The tiers of the tests: which are run, in which order, and in which process.

README's tests have no mark. `gate` and `nightly` are those that they leave out, and `aot` those
that need compilers for TPUs and GPUs (CONTRIBUTING.md).
"""

from __future__ import annotations

import collections
import gc
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import measured_secs
from tests.compile_budget import CompileBudget, read_budgets

TIERS = ("gate", "nightly")
"""Markers of the tests that README's command leaves out, beside `aot`."""
README = "not nightly and not aot and not gate"
_WHOLE_FILE = re.compile(
    r"^pytestmark = (?:\[\n? *)?pytest\.mark\.(gate|nightly|aot)\b", re.MULTILINE
)
_SOME = {
    "gate": re.compile(r"mark\.(gate|samples)\b"),
    "nightly": re.compile(r"mark\.(nightly|samples)\b"),
    "aot": re.compile(r"mark\.aot\b"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that renews the measured seconds, and that of pieces of files."""
    parser.addoption("--measure", action="store_true", help="renew tests/measured_secs.json")
    parser.addoption(
        "--piece",
        action="append",
        default=[],
        metavar="FILE:NUMBER/COUNT",
        help="of the nightly tests of a file, take those of one of several pieces, from 0 on",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugins of this folder, and leaves out nightly tests that nobody asks for."""
    if config.option.markexpr and "nightly" not in config.option.markexpr:
        config.option.markexpr = f"({config.option.markexpr}) and not nightly"
    measures = config.option.measure
    config.pluginmanager.register(CompileBudget(None if measures else read_budgets()))
    if measures and not hasattr(config, "workerinput"):
        config.pluginmanager.register(measured_secs.Recorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Looks for garbage seldom, and never in what imports made: tracing makes much that stays."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without a test of the chosen tier, since importing them takes long."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    chosen, text = config.option.markexpr, collection_path.read_text()
    if chosen == README:
        return True if _WHOLE_FILE.search(text) else None
    tier = chosen.removeprefix("(").partition(")")[0]
    return True if tier in _SOME and not _SOME[tier].search(text) else None


def pytest_xdist_auto_num_workers() -> int:
    """Returns one more than there are cores: tests of processes wait part of their time."""
    mine = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return mine + 1


def _leave_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases of parametrized tests to the gate, or to the nightly tests.

    `samples(*ids, gate=ids)` names those that README's tests run, and those that the gate runs
    besides: all others if it does not say; else the rest is nightly.

    Raises:
      UsageError: one of the names is that of no case.
    """
    whole = not any("::" in argument for argument in config.args)
    cases: dict[str, set[str]] = collections.defaultdict(set)
    named: dict[str, set[str]] = {}
    for item in items:
        samples = item.get_closest_marker("samples")
        others = any(item.get_closest_marker(name) for name in ("nightly", "aot"))
        if not samples or others:
            continue
        case = item.callspec.id  # type: ignore[attr-defined]
        in_gate = samples.kwargs.get("gate", (case,))
        if case not in samples.args:
            item.add_marker("gate" if case in in_gate else "nightly")
        test = item.nodeid.partition("[")[0]
        cases[test].add(case)
        named[test] = {*samples.args, *samples.kwargs.get("gate", ())}
    for test, names in named.items() if whole else ():
        if unknown := names - cases[test]:
            raise pytest.UsageError(f"{test} has no case {min(unknown)!r}, which samples names.")


def _leave_pieces(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what is in other pieces of a file than those that are asked for.

    Tests of one case stay together, since they share what is made for it.
    """
    wanted: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)
    for piece in config.option.piece:
        path, _, part = piece.rpartition(":")
        number, count = map(int, part.split("/"))
        wanted[path].add((number, count))
    others = set()
    for path, parts in wanted.items():
        numbers: dict[str, int] = {}
        for item in items:
            if item.nodeid.startswith(f"{path}::") and item.get_closest_marker("nightly"):
                case = item.callspec.id if hasattr(item, "callspec") else item.name
                of_case = numbers.setdefault(case, len(numbers))
                if not any(of_case % count == number for number, count in parts):
                    others.add(item)
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases to other tiers, and begins with the files that take longest.

    A long file at the end would leave all processes but one idle, and so would one that nobody has
    measured.
    """
    _leave_cases(config, items)
    _leave_pieces(config, items)
    chosen = config.option.markexpr
    tier = next((one for one in TIERS if chosen.removeprefix("(").startswith(one)), "readme")
    secs = measured_secs.read(tier)
    files: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    longest = sorted(files, key=lambda path: (-secs.get(path, math.inf), path))
    items[:] = [item for path in longest for item in files[path]]
