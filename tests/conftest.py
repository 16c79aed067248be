"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

# For those with meshes; processes that tests start do not see them.
jax.config.update("jax_num_cpu_devices", 4)

# Compiling is nearly all that these folders' tests do, and what is compiled runs a few times.
QUICKLY_COMPILED = ("actors", "models", "rollout", "runtime")
_GROUP = "xdist_group"
_QUICK = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation(request: pytest.FixtureRequest):
    folders = (Path(__file__).parent / name for name in QUICKLY_COMPILED)
    before = jax.config.read(_QUICK)
    jax.config.update(_QUICK, before or any(map(request.path.is_relative_to, folders)))
    yield
    jax.config.update(_QUICK, before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file go to one process, but for those that say otherwise."""
    for item in items:
        if item.get_closest_marker(_GROUP) is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
