"""Settings and fixtures of all tests."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import hypothesis
import jax
import jaxlib.version
import pytest
from ml_collections import ConfigDict

from rl_sync.tasks import task_catalog

pytest_plugins = ["tests.tiers"]

# The older way in which XLA fuses on CPUs, and code in one piece, take half the time to compile.
# JAX is about to lose the former, and does not start with a flag that it does not know.
if jaxlib.version.__version_info__ < (0, 11):
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )

# For those with meshes; processes that tests start do not see them.
jax.config.update("jax_num_cpu_devices", 4)

# All processes of a session share what takes long to compile, and so do those that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="rl_sync-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update(
    "jax_persistent_cache_min_compile_time_secs",
    float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]),
)

# Each parser of a command line would write the whole config as YAML, for a help that nobody reads.
ConfigDict.__str__ = object.__repr__

# Properties are tried on the same examples each time, so that a commit is not refused for another's
# fault; `-m hypothesis --hypothesis-profile=default` looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, print_blob=True)
hypothesis.settings.load_profile("repeatable")

# Loading a task takes up to a second, and hundreds of tests load the same few.
task_catalog._load = functools.lru_cache(maxsize=64)(task_catalog._load.__wrapped__)

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


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports modules of benchmarks/, which import each other by their names alone."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    return importlib.import_module


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
