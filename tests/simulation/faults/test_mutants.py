"""The search finds mistakes that real systems have made."""

import pytest

from rl_sync.simulation.faults.drawn_run import draw
from rl_sync.simulation.faults.search import search
from tests.simulation.faults.mutants import MUTANTS

SEEDS = range(2000)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found_within_two_thousand_seeds(name):
    mutant = MUTANTS[name]
    seeds = [seed for seed in SEEDS if draw(seed).kinds >= mutant.needs]
    found = search(seeds, parts=mutant.parts)
    assert any(one.failed and mutant.rule in one.failed for one in found)
