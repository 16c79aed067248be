"""A simulated disk loses what was not flushed, and nothing else."""

import random

import pytest

from rl_sync.simulation.faults.disk import DiskFullError, SimulatedDisk


def after_power_cuts(flushed, unflushed):
    """Returns what is left of a file in many power cuts."""
    left = set()
    for seed in range(50):
        disk = SimulatedDisk()
        for record in range(flushed):
            disk.append("trainer", "log", record)
        if flushed:
            disk.flush("log")
        for record in range(flushed, flushed + unflushed):
            disk.append("trainer", "log", record)
        disk.cut_power("trainer", random.Random(seed))
        left.add(tuple(disk.read("log")))
    return left


def test_a_power_cut_leaves_the_flushed_records_and_a_part_of_the_others():
    assert after_power_cuts(flushed=2, unflushed=2) == {(0, 1), (0, 1, 2)}
    assert after_power_cuts(flushed=2, unflushed=0) == {(0, 1)}


def test_a_file_that_was_renamed_before_a_flush_is_lost():
    disk = SimulatedDisk()
    for name, flushes in [("safe", True), ("lost", False)]:
        disk.write("trainer", "partial", ["content"])
        if flushes:
            disk.flush("partial")
        disk.rename("partial", name)
    disk.cut_power("trainer", random.Random(0))
    assert (disk.read("safe"), disk.read("lost")) == (["content"], [])


def test_a_power_cut_of_one_process_costs_others_nothing():
    disk = SimulatedDisk()
    disk.write("master", "journal", ["line"])
    disk.cut_power("trainer", random.Random(0))
    assert disk.read("journal") == ["line"]


def test_a_full_disk_refuses_writes_and_keeps_what_is_there():
    disk = SimulatedDisk()
    disk.write("master", "journal", ["line"])
    disk.is_full = True
    with pytest.raises(DiskFullError, match="master cannot write journal: the disk is full"):
        disk.append("master", "journal", "more")
    with pytest.raises(DiskFullError, match="the disk is full"):
        disk.write("master", "journal", [])
    assert disk.read("journal") == ["line"]
