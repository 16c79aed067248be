"""Processes on machines, counted by hand."""

import pytest

from rl_sync.addons.clusters.node_placement import NodeRoom, PlacedProcess, check_count, fill
from rl_sync.settings.records import ConfigError


def processes(**counts_and_devices):
    return [
        PlacedProcess(program, program if index == 0 else f"{program}/{index}", devices)
        for program, (count, devices) in counts_and_devices.items()
        for index in range(count)
    ]


def names(nodes):
    return [" ".join(one.name for one in node) for node in nodes]


def test_processes_fill_nodes_in_order_by_their_devices():
    room = NodeRoom(devices=8)
    run = processes(trainer=(2, 6), explorer1=(1, 2), explorer2=(1, 4), explorer3=(1, 4))
    assert names(fill(run, room, room)) == ["trainer", "trainer/1 explorer1", "explorer2 explorer3"]


def test_a_later_process_does_not_go_back_to_an_earlier_node():
    room = NodeRoom(devices=8)
    run = processes(trainer=(1, 6), explorer1=(1, 4), explorer2=(1, 2))
    assert names(fill(run, room, room)) == ["trainer", "explorer1 explorer2"]


def test_the_first_machine_may_have_another_room():
    run = processes(trainer=(1, 1), explorer1=(1, 1), explorer2=(1, 1), explorer3=(1, 1))
    nodes = fill(run, NodeRoom(2), NodeRoom(2, processes=1))
    assert names(nodes) == ["trainer explorer1", "explorer2", "explorer3"]


def test_a_process_larger_than_a_machine_is_refused_with_the_way_out():
    room = NodeRoom(devices=8)
    with pytest.raises(ConfigError, match=r"explorer1 takes 16 devices.*raise explorer\.processes"):
        fill(processes(trainer=(1, 8), explorer1=(1, 16)), room, room)
    with pytest.raises(ConfigError, match=r"raise trainer\.processes"):
        fill(processes(trainer=(1, 9)), room, room)


def test_too_few_and_too_many_machines_are_refused():
    room = NodeRoom(processes=1)
    nodes = fill(processes(trainer=(1, 4), explorer1=(1, 2)), room, room)
    check_count(nodes, 2, "--nodes=2")
    few = r"^--nodes=1: the run's 2 processes take 2 machines .*trainer:4; explorer1:2.* 1 is given"
    with pytest.raises(ConfigError, match=few):
        check_count(nodes, 1, "--nodes=1")
    with pytest.raises(ConfigError, match=r"3 are given\. The others would be idle: give 2"):
        check_count(nodes, 3, "--nodes=3")
