"""The benchmark of the control plane, at a small size."""

import pytest


@pytest.fixture
def benchmark(benchmarks):
    return benchmarks("control_plane")


def test_the_master_handles_each_group_once(benchmark):
    for name in benchmark.SCHEDULES:
        (found,) = benchmark.measure(name, explorers=4, steps=4, seeds=[0])
        assert found.steps == 3
        buffered = found.costs["GroupsBuffered"].events / found.steps
        assert 2 <= buffered <= 2 * benchmark.GROUPS_EACH * 4
        assert found.costs["BatchTrained"].events == found.steps
        assert found.state_bytes > 1000
        assert found.journal_bytes > 100 * found.steps
        assert "GroupsBuffered" in benchmark.kinds([found])
        assert benchmark.row(name, 4, [found])[:2] == [name, "4"]


def test_the_state_and_the_journal_grow_in_proportion_to_explorers(benchmark):
    few, many = (benchmark.measure("synchronous", count, 3, [0])[0] for count in (8, 64))
    assert 4 < many.journal_bytes / few.journal_bytes < 16
    assert many.file_bytes / few.file_bytes < 16
    assert many.state_bytes / few.state_bytes < 16


@pytest.mark.nightly
def test_all_explorers_of_a_real_master_wait_and_then_get_work(benchmark):
    explorers = 40
    found = benchmark.measure_calls(explorers, secs=0.2)
    assert found.granted == benchmark.GROUPS_EACH * explorers
    assert found.threads > explorers
    assert 0.9 < found.files_each < 2
    assert found.life.calls > 0
    assert found.work.calls > 0
    assert len({*benchmark.figures(found)}) == 11
