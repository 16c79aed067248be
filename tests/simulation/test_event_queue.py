"""Virtual time."""

from rl_sync.simulation.event_queue import EventQueue


def order(seed, count=20):
    queue, seen = EventQueue(seed), []
    for i in range(count):
        queue.at(1.0, lambda i=i: seen.append(i))
    queue.run(1.0)
    return seen


def test_actions_run_at_their_times():
    queue, seen = EventQueue(), []

    def first():
        seen.append(("first", queue.now_secs))
        queue.after(0.5, lambda: seen.append(("second", queue.now_secs)))

    queue.at(3.0, lambda: seen.append(("third", queue.now_secs)))
    queue.at(1.0, first)
    assert queue.run(2.0)
    assert (seen, queue.now_secs) == ([("first", 1.0), ("second", 1.5)], 2.0)
    assert not queue.run(10.0)
    assert seen[-1] == ("third", 3.0)
    assert queue.now_secs == 10.0
    assert queue.handled == 3


def test_the_past_is_now():
    queue, seen = EventQueue(), []
    queue.run(5.0)
    queue.at(1.0, lambda: seen.append(queue.now_secs))
    queue.step()
    assert seen == [5.0]
    assert not queue.step()


def test_the_order_of_simultaneous_actions_depends_on_the_seed_alone():
    assert order(None) == list(range(20))
    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == list(range(20))
