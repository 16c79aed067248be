"""A simulated network does what the fault kinds of a run say, until it is healed."""

import random

import pytest

from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.faults.network import SimulatedNetwork


def sent(kinds, count=300, prepare=lambda network: None):
    """Sends numbers from one process to another; returns those that arrive, in order."""
    queue, arrived = EventQueue(0), []
    network = SimulatedNetwork(queue, random.Random(0), frozenset(kinds))
    prepare(network)
    for number in range(count):
        queue.at(
            number * 0.1,
            lambda number=number: network.send("a", "b", lambda: arrived.append(number)),
        )
    while queue.step():
        pass
    return arrived


def test_without_faults_everything_arrives_in_order():
    assert sent([]) == [*range(300)]


@pytest.mark.parametrize("kind", ["delay", "duplicate", "loss"])
def test_each_kind_of_fault_does_one_thing(kind):
    arrived = sent([kind])
    assert (sorted(arrived) != arrived) == (kind == "delay")
    assert (len(arrived) > len({*arrived})) == (kind == "duplicate")
    assert ({*arrived} != {*range(300)}) == (kind == "loss")


def test_nothing_passes_to_a_process_that_is_cut_off():
    arrived = sent([], prepare=lambda network: network.isolate("b", 10.05))
    assert arrived == [*range(101, 300)] or arrived == [*range(100, 300)]


def test_a_healed_network_has_no_faults():
    kinds = ["delay", "duplicate", "loss", "damage"]
    assert sent(kinds, prepare=lambda network: network.heal()) == [*range(300)]


def test_weights_are_damaged_only_where_the_run_has_this_fault():
    def damaged(kinds):
        network = SimulatedNetwork(EventQueue(0), random.Random(0), frozenset(kinds))
        return sum(network.damages() for _ in range(100))

    assert damaged(["loss"]) == 0
    assert 10 < damaged(["damage"]) < 60
