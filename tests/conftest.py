"""Settings and fixtures of all tests."""

from __future__ import annotations

import collections
import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import pytest
from xdist.scheduler import LoadScopeScheduling

# The older way in which XLA fuses on CPUs, and code in one piece, take half the time to compile.
# JAX is about to lose the former, and does not start with a flag that it does not know.
if jaxlib.version.__version_info__ < (0, 11):
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )

# For those with meshes; processes that tests start do not see them.
jax.config.update("jax_num_cpu_devices", 4)

# Compiling is nearly all that these folders' tests do, and what is compiled runs a few times.
QUICKLY_COMPILED = (
    "algorithms",
    "checkpoints",
    "learning",
    "models",
    "rollout",
    "reward_models",
    "roles",
    "runs",
    "scoring",
    "transfers",
    "weights",
)
_QUICK = "jax_disable_most_optimizations"

MAPS, MOST_MAPS = Path("/proc/self/maps"), 40_000


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation(request: pytest.FixtureRequest):
    folders = (Path(__file__).parent / name for name in QUICKLY_COMPILED)
    before = jax.config.read(_QUICK)
    compiles = any(map(request.path.is_relative_to, folders))
    jax.config.update(_QUICK, before or compiles)
    yield
    jax.config.update(_QUICK, before)
    if compiles:
        _forget_programs()


def _forget_programs() -> None:
    """Lets go of compiled programs before there are too many.

    Each has its code in some twenty memory maps. Linux gives a process 65,530, and XLA crashes when
    it gets no more.
    """
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def pytest_collection_finish() -> None:
    """Looks for garbage seldom, and never in what imports made: tracing makes much that stays."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


RUNS = "tests/runs/"


def _scope(nodeid: str) -> str:
    """Returns the scope of a test, whose tests share a process: a file, or a part of a file.

    Parameters such as `[part: …]` name a part.
    """
    path, _, test = nodeid.partition("::")
    part = re.search(r"\[(\w+): ", test)
    return path + part[1] if part else path


class _ByScope(LoadScopeScheduling):
    """Distributes scopes to the processes in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_xdist_auto_num_workers() -> int:
    """Returns one more than there are cores: tests of processes wait part of their time."""
    mine = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return mine + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Makes the scheduler that distributes tests to processes."""
    config.option.loadscopereorder = False
    return _ByScope(config, log)


def _leave_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases of parametrized tests to the gate, or to the slow tests.

    `samples(*ids, gate=ids)` names those that README's tests run, and those that the gate runs
    besides: all others if it does not say; else the rest is slow.

    Raises:
      UsageError: one of the names is that of no case.
    """
    whole = not any("::" in argument for argument in config.args)
    cases: dict[str, set[str]] = collections.defaultdict(set)
    named: dict[str, set[str]] = {}
    for item in items:
        samples = item.get_closest_marker("samples")
        others = any(item.get_closest_marker(name) for name in ("slow", "aot"))
        if not samples or others:
            continue
        case = item.callspec.id  # type: ignore[attr-defined]
        in_gate = samples.kwargs.get("gate", (case,))
        if case not in samples.args:
            item.add_marker("gate" if case in in_gate else "slow")
        test = item.nodeid.partition("[")[0]
        cases[test].add(case)
        named[test] = {*samples.args, *samples.kwargs.get("gate", ())}
    for test, names in named.items() if whole else ():
        if unknown := names - cases[test]:
            raise pytest.UsageError(f"{test} has no case {min(unknown)!r}, which samples names.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases to the gate, and spreads the files of whole runs among the others.

    Files with most tests come first.

    Side by side, whole runs would compete for the cores. All of them at the end, or a long one,
    would leave processes idle.
    """
    _leave_cases(config, items)
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(_scope(item.nodeid), []).append(item)
    longest = sorted(scopes, key=lambda scope: (-len(scopes[scope]), scope))
    runs = [scope for scope in longest if scope.startswith(RUNS)]
    others = [scope for scope in longest if not scope.startswith(RUNS)]
    stride = max(1, len(others) * 3 // 4 // max(1, len(runs)))
    order = []
    for number, scope in enumerate(others):
        if number % stride == 0 and runs:
            order.append(runs.pop(0))
        order.append(scope)
    items[:] = [item for scope in [*order, *runs] for item in scopes[scope]]
