"""The comparison with other libraries: which steps count, and accuracy over seconds."""

import sys

import pytest

pytestmark = pytest.mark.gate


@pytest.fixture
def peers(benchmarks):
    return benchmarks("beside_peers")


def line(side, seed, every, secs, accuracy=()):
    return {
        "side": side,
        "seed": seed,
        "every": every,
        "secs": secs,
        "cpu_secs": [2 * one for one in secs],
        "accuracy": [*accuracy],
    }


def test_steps_that_compile_or_follow_an_evaluation_do_not_count(peers):
    ends = [10.0, 15.0, 16.0, 18.0, 24.0, 25.0]
    assert peers.step_secs(line("trl", 0, 0, ends)) == [1.0, 2.0, 6.0, 1.0]
    assert peers.step_secs(line("trl", 0, 4, ends)) == [1.0, 2.0, 1.0]
    assert peers.step_secs(line("trl", 0, 0, ends[:2])) == []


def test_accuracy_stands_at_the_end_of_the_step_that_made_the_policy(peers):
    lines = [
        line("rl_sync", 1, 2, [4.0, 5.0, 6.0, 8.0], [(0, 0.2), (2, 0.5), (4, 0.6)]),
        line("rl_sync", 0, 2, [4.0, 7.0, 8.0, 9.0], [(0, 0.1), (2, 0.4), (4, 0.7)]),
        line("tunix", 0, 2, [40.0, 60.0], [(0, 0.1), (2, 0.3)]),
        line("trl", 1, 2, [9.0, 10.0, 20.0, 25.0], [(0, 0.2)]),
    ]
    rows = peers.report(lines)
    assert rows[0] == "| | seed 0 | seed 1 |"
    assert "| trl, s a step |  | 5.0 / 5.0 / 5.0 |" in rows
    assert "| rl_sync | 2 | 40.0 / 45.0 / 50.0 | 5 / 6 / 7 | 10 / 12 / 14 |" in rows
    assert "| tunix | 2 | 30.0 / 30.0 / 30.0 | 60 / 60 / 60 | 120 / 120 / 120 |" in rows
    seconds, cpu = peers.figure(lines).axes
    assert list(seconds.lines[0].get_xdata()) == [0.0, 7.0, 9.0]
    assert list(cpu.lines[3].get_xdata()) == [0.0, 120.0]


def test_ours_stands_beside_the_end_of_each_other_side(peers):
    lines = [
        line("rl_sync", 0, 2, [4.0, 7.0, 8.0, 9.0], [(0, 0.1), (2, 0.4), (4, 0.7)]),
        {**line("trl", 0, 2, [5.0, 8.0], [(0, 0.1), (2, 0.3)]), "cpu_secs": [10.0, 20.0]},
        line("tunix", 0, 2, [3.0, 6.0], [(0, 0.1), (2, 0.5)]),
        line("tunix", 1, 2, [3.0, 6.0], [(0, 0.1), (2, 0.5)]),  # Without a run of ours.
    ]
    *_, trl, tunix = peers.report(lines)
    assert trl == "| trl | 0 | 8 | 30.0 | 2, 40.0 | 20 | 4, 70.0 |"
    assert tunix == "| tunix | 0 | 6 | 50.0 | 0, 10.0 | 12 | 0, 10.0 |"


def test_a_command_is_followed_with_the_cpu_seconds_of_its_children(peers):
    child = (
        "import time; start = time.process_time()\nwhile time.process_time() - start < 1.5: pass"
    )
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(7)"
    followed = peers._follow([sys.executable, "-c", program])
    assert followed.output == "7\n"
    assert followed.times[0] == followed.cpu[0] == 0.0
    assert 0.5 < followed.cpu_at([followed.times[-1]])[0] < 4
    with pytest.raises(SystemExit, match="failed"):
        peers._follow([sys.executable, "-c", "raise SystemExit(3)"])
