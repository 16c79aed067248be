"""Settings that a run whose device was full is told of save what is promised."""

import pytest

from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_advice import advice, describe_advice
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from tests.plan.test_memory_text import settings_with

pytestmark = pytest.mark.gate

ESTIMATES = {"trainer": step_estimate, "explorer": explorer_estimate}
RUNS = {
    "all parameters": {"trainer__microbatch_rows": 6, "algorithm__kl_coefficient": 0.01},
    "adapters": {"model__lora__rank": 2},
    "16 bits": {"model__dtype": "bfloat16", "rollout__slots": 8},
    "pages": {"rollout__cache_bytes": 1_000_000},
}


@pytest.mark.parametrize("role", ESTIMATES)
@pytest.mark.parametrize(
    "name",
    [name if name == "adapters" else pytest.param(name, marks=pytest.mark.gate) for name in RUNS],
)
def test_each_change_is_valid_and_needs_what_is_said(name, role):
    settings = settings_with(**RUNS[name])
    task = wiring.load_task(settings)
    before, changes = advice(settings, task, role, "gpu")
    assert before == ESTIMATES[role](settings, task, "gpu").peak
    assert 1 <= len(changes) <= 3
    assert [one.peak for one in changes] == sorted(one.peak for one in changes)
    for change in changes:
        config = settings.resolved()
        *sections, field = change.name.split(".")
        section = config
        for part in sections:
            section = section[part]
        assert section[field] != change.value
        section[field] = change.value
        changed = read_settings(config)
        peak = ESTIMATES[role](changed, wiring.load_task(changed), "gpu").peak
        assert peak == change.peak < before


def test_the_text_has_the_flags_and_the_gain():
    settings = settings_with(**RUNS["all parameters"])
    text = describe_advice(settings, wiring.load_task(settings), ["trainer", "explorer"], "gpu")
    first, *lines = text.splitlines()
    assert "needs less memory with one of these" in first
    assert all(line.startswith("  --config.") for line in lines)
    assert {line.rpartition("of the ")[2] for line in lines} == {"trainer", "explorer"}
    assert describe_advice(settings, wiring.load_task(settings), [], "gpu") == ""
