"""Slots in decode steps, and work on shared cores, with numbers computed by hand."""

import pytest

from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.speed.shared_machine import SharedMachine
from rl_sync.simulation.speed.simulated_slots import Decoded, SimulatedSlots
from rl_sync.simulation.speed.workload import SharedCores


def test_a_free_slot_takes_the_next_sequence():
    slots = SimulatedSlots(2)
    slots.add(7, [3, 10])
    slots.add(8, [4, 5])
    assert slots.occupied == 4
    # The first slot has 3, then 4, then 5 tokens; the second has 10.
    assert slots.advance() == Decoded(12, 22, [7, 8])
    assert slots.occupied == 0
    assert slots.advance() == Decoded(0, 0, [])


def test_chunks_and_budgets_end_before_all_is_done():
    slots = SimulatedSlots(4)
    slots.add(1, [5, 8])
    slots.add(2, [20, 20])
    assert slots.advance(most_steps=8) == Decoded(8, 5 + 8 + 16, [1])
    assert slots.advance(most_tokens=10) == Decoded(5, 10, [])
    assert slots.occupied == 2
    assert slots.advance() == Decoded(7, 14, [2])


def ends_of(shared, works):
    """Returns the times at which pieces of work end: (begin, is_trainer, secs) each."""
    queue, ends = EventQueue(), {}
    machine = SharedMachine(queue, shared)
    for i, (begin, is_trainer, secs) in enumerate(works):

        def done(i=i):
            ends[i] = queue.now_secs

        queue.at(begin, lambda a=is_trainer, b=secs, c=done: machine.work(a, b, c))
    queue.run(1000.0)
    return [ends[i] for i in range(len(works))]


def test_roles_with_devices_of_their_own_do_not_slow_each_other_down():
    assert ends_of(None, [(0.0, True, 4.0), (1.0, False, 2.0)]) == [4.0, 3.0]


def test_roles_that_share_cores_get_parts_of_them():
    full = SharedCores(2.0, trainer=2.0, explorer=2.0)
    # Alone for a second, then at half speed until the explorer ends at 5, then alone again.
    assert ends_of(full, [(0.0, True, 4.0), (1.0, False, 2.0)]) == pytest.approx([6.0, 5.0])
    roomy = SharedCores(2.0, trainer=1.0, explorer=1.0)
    assert ends_of(roomy, [(0.0, True, 4.0), (1.0, False, 2.0)]) == pytest.approx([4.0, 3.0])
    # Three want 3 cores of 2.
    three = [(0.0, True, 2.0), (0.0, False, 2.0), (0.0, False, 2.0)]
    assert ends_of(roomy, three) == pytest.approx([3.0, 3.0, 3.0])


def test_the_rate_is_the_share_of_the_cores():
    shared = SharedCores(4.0, trainer=3.0, explorer=2.0)
    assert shared.rate(0, 0) == shared.rate(1, 0) == shared.rate(0, 2) == 1.0
    assert shared.rate(1, 1) == 0.8
    assert shared.rate(1, 5) == pytest.approx(4 / 13)
