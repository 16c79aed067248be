"""The collective transfer that `plan` prints."""

import re

import pytest

from rl_sync.plan.memory.memory_text import describe_transfer
from rl_sync.roles.assembly import wiring
from tests.plan.test_memory_text import PARAMETERS, settings_with, size


def described(**fields: object) -> list[str]:
    settings = settings_with(sync__transfer="collective", **fields)
    return describe_transfer(settings, wiring.load_task(settings))


def test_one_program_moves_a_tiny_model_from_one_device_to_one():
    (line,) = described()
    assert "1 program moves the weights to an explorer, in 1 turn;" in line
    (most,) = re.findall(r"at most (\S+ \w+)$", line)
    assert size(most) == pytest.approx(3 * PARAMETERS, rel=0.01)  # Sent, under way, received.


def test_each_of_two_devices_sends_to_each_of_two_in_two_turns():
    (line,) = described(trainer__mesh__fsdp=2, explorer__mesh__tensor=2)
    assert re.search(r"\d programs? moves? the weights to an explorer, in 2 turns;", line)


def test_weights_that_go_another_way_are_not_described():
    assert described(launch__colocate=True) == []
    settings = settings_with(sync__transfer="checkpoint")
    assert describe_transfer(settings, wiring.load_task(settings)) == []
