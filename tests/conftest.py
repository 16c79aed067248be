"""What all tests share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

# For those with meshes; processes that tests start do not see them.
jax.config.update("jax_num_cpu_devices", 4)

# Compiling is nearly all that these folders' tests do, and what is compiled runs a few times.
QUICKLY_COMPILED = ("actors", "models", "rollout", "runtime")
_QUICK = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation(request: pytest.FixtureRequest):
    folders = (Path(__file__).parent / name for name in QUICKLY_COMPILED)
    before = jax.config.read(_QUICK)
    jax.config.update(_QUICK, before or any(map(request.path.is_relative_to, folders)))
    yield
    jax.config.update(_QUICK, before)


class _ByFile(LoadScopeScheduling):
    """Tests of one file go to one process, but for those whose parameters say `[part: …]`: those of
    each part go to one."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        part = re.search(r"\[(\w+): ", test)
        return path + part[1] if part else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Which tests go to one process."""
    return _ByFile(config, log)
