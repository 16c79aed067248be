"""The benchmark of streaming: its simulation of small bounds on staleness."""

import importlib.util
import statistics
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "streaming_simulation.py"
_SPEC = importlib.util.spec_from_file_location("streaming_simulation", _PATH)
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)


@pytest.mark.gate
@pytest.mark.parametrize(("judging", "bound"), [(0, 4), (1, 4), (5, 8)])
def test_with_deadlines_one_long_group_holds_no_others_back(judging, bound):
    leases, oldest, by_deadline, abort = (
        statistics.median(
            simulation.measure(rule, judging, bound, seed, steps=30, slots=16).time
            for seed in range(3)
        )
        for rule in simulation.RULES[:4]
    )
    assert by_deadline < 1.15
    assert by_deadline < abort < leases
    assert 1.2 < oldest < leases


def test_slots_are_full_where_the_bound_is_large():
    for rule in simulation.RULES[1:]:
        assert simulation.measure(rule, 0, 20, seed=0, steps=30, slots=16).time < 1.05


@pytest.mark.gate
@pytest.mark.parametrize("seed", range(3))
def test_a_bound_of_tokens_loses_old_tokens_and_one_of_groups_none(seed):
    lost = {
        rule: simulation.measure(rule, 0, 2, seed, steps=30, slots=16).lost
        for rule in simulation.RULES
    }
    assert not any(lost[rule] for rule in ("leases", "oldest under way", "by deadline"))
    assert all(0 < lost[rule] < 0.5 for rule in simulation.LOSSY)
