"""The programs that `plan` counts before a run."""

import re

from rl_sync.plan.compile_text import describe_programs
from rl_sync.roles.assembly import wiring
from tests.settings.changed import settings_with


def counted(**fields):
    settings = settings_with(**fields)
    lines = describe_programs(settings, wiring.load_task(settings)).splitlines()[1:]
    found = {}
    for line in lines:
        role, rest = line.split(maxsplit=1)
        for total, platform, parts in re.findall(r"(\d+) on (\w+) \(([^)]*)\)", rest):
            numbers = {name: int(n) for name, n in re.findall(r"([\w-]+) (\d+)", parts)}
            assert int(total) == sum(numbers.values())
            found[role, platform] = numbers
    return found


def test_the_programs_of_each_role_are_counted_for_both_kinds_of_platforms():
    sizes = {
        "task__max_completion_tokens": 120,
        "rollout__slots": 16,
        "trainer__batching": "bucketed",
        "sft__steps": 100,
    }
    found = counted(**sizes)
    on_cpus = found["explorer", "CPUs"]
    # 16 or 8 rows; prompts have one padded length; pages are read as far as they have to be.
    assert on_cpus == {"empty_slots": 2, "prefill": 1, "insert": 2, "decode": 2, "rearrange": 2}
    assert found["explorer", "accelerators"] == {**on_cpus, "decode": 4}
    trainer = found["trainer", "CPUs"]
    assert trainer["training"] == trainer["sft"] == 7
    assert found["trainer", "accelerators"]["evaluation"] > trainer["evaluation"]


def test_a_run_without_rollouts_has_a_trainer_alone():
    fields = {"algorithm__name": "sft", "sft__steps": 0}
    assert {role for role, _ in counted(**fields)} == {"trainer"}
    assert "sft" not in counted(**fields)["trainer", "CPUs"]


def test_an_explorer_whose_engine_is_served_compiles_nothing():
    settings = settings_with(
        sync__mode="asynchronous",
        explorer__engine="vllm:http://127.0.0.1:8000",
        evaluation__by="trainer",
    )
    text = describe_programs(settings, wiring.load_task(settings))
    (explorer,) = (line.split(maxsplit=1)[1] for line in text.splitlines() if "explorer" in line)
    assert explorer == "none on CPUs, none on accelerators"
