"""A task is loaded without starting JAX's backend, which would take the machine's devices."""

import subprocess
import sys

import pytest

LOADS = """
import json, sys
from jax._src import xla_bridge
from rl_sync.configs import arithmetic
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings

config = arithmetic.get_config()
config.workdir = "unused"
config.update_from_flattened_dict(json.loads(sys.argv[1]))
wiring.load_task(read_settings(config.to_dict()))
print(xla_bridge.backends_are_initialized())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("given", ["{}", '{"rollout.cache_bytes": 1000000}'])
def test_loading_a_task_starts_no_backend(given):
    command = [sys.executable, "-c", LOADS, given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "False", done.stderr
