"""Programs, their processes, and their indices in a cluster."""

from __future__ import annotations

import pytest

from rl_sync.cluster.topology import (
    cluster_size,
    device_share,
    indices_of,
    layout_of,
    members_of,
    programs_of,
)
from rl_sync.settings.records import ConfigError
from tests.settings.test_run_settings import settings_with

TWO = {"sync__mode": "multi_explorer", "explorer__count": 2}
SHARED = {
    "trainer__mesh__fsdp": 4,
    "trainer__processes": 2,
    "explorer__mesh__tensor": 6,
    "explorer__processes": 3,
}


def test_each_program_has_its_processes_in_order():
    names = [member.name for member in members_of(settings_with(**TWO, **SHARED))]
    explorers = [f"explorer{i}{process}" for i in (1, 2) for process in ("", "/1", "/2")]
    assert names == ["trainer", "trainer/1", *explorers]


def test_with_collective_transfer_all_are_in_one_cluster_and_else_each_is_in_its_own():
    settings = settings_with(**TWO, **SHARED, sync__transfer="collective")
    assert [indices_of(settings, name) for name in programs_of(settings)] == [
        range(2),
        range(2, 5),
        range(5, 8),
    ]
    assert {cluster_size(settings, name) for name in programs_of(settings)} == {8}
    settings = settings_with(**TWO, **SHARED, sync__transfer="checkpoint")
    assert indices_of(settings, "explorer2") == range(3)
    assert [cluster_size(settings, name) for name in ("trainer", "explorer1")] == [2, 3]


def test_each_process_has_an_equal_part_of_the_mesh():
    settings = settings_with(**TWO, **SHARED)
    assert [device_share(settings, name) for name in ("trainer", "explorer2")] == [2, 2]


def test_in_one_process_there_is_one_program_and_no_cluster():
    settings = settings_with(launch__colocate=True)
    assert [member.name for member in members_of(settings)] == ["trainer+explorers"]
    assert cluster_size(settings, "trainer") == 1


def test_a_process_with_too_few_devices_is_told_how_many_its_part_takes():
    settings = settings_with(trainer__mesh__fsdp=8, trainer__groups_per_step=64)
    with pytest.raises(ConfigError, match=r"takes 8 devices of each of the 1 processes.* has 4"):
        layout_of(settings, "trainer")
