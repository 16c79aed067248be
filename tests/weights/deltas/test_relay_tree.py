"""Who fetches from whom: short ways to the trainer, without circles, past those that failed."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.messages.weight_calls import Relay
from rl_sync.weights.deltas.relay_tree import RelayTree

AGES = 1e6


def tree_of(fanout: int, count: int, index: int = 0) -> RelayTree:
    tree = RelayTree(fanout)
    for number in range(count):
        tree.join(f"explorer_{number}.{index}", f"host:{number}")
    return tree


def way(tree: RelayTree, number: int, now: float = 0.0, index: int = 0) -> list[int]:
    """Returns the numbers of the explorers that an explorer asks."""
    path = tree.path(f"explorer_{number}.{index}", now)
    assert all(relay.name.endswith(f".{index}") for relay in path)
    return [int(relay.address.removeprefix("host:")) for relay in path]


def test_explorers_in_a_row_end_at_the_trainer():
    tree = tree_of(1, 5)
    assert [way(tree, number) for number in range(5)] == [[], [0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]


def test_explorers_in_a_tree_of_two_end_at_the_trainer():
    tree = tree_of(2, 7)
    assert [way(tree, number) for number in range(7)] == [
        [], [], [0], [0], [1], [1], [2, 0]
    ]  # fmt: skip


@pytest.mark.parametrize(("fanout", "longest"), [(1, 15), (2, 3), (4, 1), (16, 0), (100, 0)])
def test_sixteen_explorers_are_a_few_steps_from_the_trainer(fanout, longest):
    tree = tree_of(fanout, 16)
    ways = [way(tree, number) for number in range(16)]
    assert max(map(len, ways)) == longest
    served = collections.Counter(path[0] if path else "trainer" for path in ways)
    assert max(served.values()) <= fanout


def test_a_process_that_has_not_joined_asks_the_trainer():
    assert RelayTree(2).path("explorer_1.0", 0) == []
    assert tree_of(1, 3).path("explorer_9.0", 0) == []


def test_processes_of_different_index_are_apart():
    tree = RelayTree(1)
    for number in range(3):
        for index in (0, 1):
            tree.join(f"explorer_{number}.{index}", f"host:{number}{index}")
    assert tree.path("explorer_2.1", 0) == [
        Relay("explorer_1.1", "host:11"),
        Relay("explorer_0.1", "host:01"),
    ]
    tree.report("explorer_0.1", 0, 1, True, 0)
    assert [one.name for one in tree.path("explorer_2.0", 0)] == ["explorer_1.0", "explorer_0.0"]


def test_an_explorer_that_leaves_takes_all_its_processes_along():
    tree = RelayTree(1)
    for name in ("a.0", "a.1", "aa.0", "aa.1", "b.0", "b.1"):
        tree.join(name, name)
    tree.leave("a")
    assert [one.name for one in tree.path("b.0", 0)] == ["aa.0"]
    assert [one.name for one in tree.path("b.1", 0)] == ["aa.1"]


def test_a_restarted_process_is_asked_at_its_new_address_and_is_new():
    tree = tree_of(1, 3)
    tree.report("explorer_0.0", 0, 1, True, 0)
    tree.join("explorer_0.0", "host:9")
    assert way(tree, 0) == [2, 1]
    tree.join("explorer_4.0", "host:4")
    assert way(tree, 4) == [9, 2, 1]


def test_a_source_that_failed_becomes_a_leaf_for_a_while():
    tree = tree_of(1, 4)
    tree.report("explorer_1.0", 100, 1, True, 1000)
    assert [way(tree, number, 1000) for number in range(4)] == [[], [3, 2, 0], [0], [2, 0]]
    assert way(tree, 3, 1000 + AGES) == [2, 1, 0]


def test_nobody_asks_a_source_that_failed_even_if_all_have():
    tree = tree_of(1, 3)
    for number in range(3):
        tree.report(f"explorer_{number}.0", 0, 1, True, 0)
    assert [way(tree, number) for number in range(3)] == [[], [], []]


def test_a_slow_source_becomes_a_leaf_until_it_is_fast():
    tree = tree_of(1, 4)
    for number, rate in ((0, 100), (1, 10), (2, 90)):
        tree.report(f"explorer_{number}.0", rate, 1, False, 0)
    assert [way(tree, number) for number in range(4)] == [[], [3, 2, 0], [0], [2, 0]]
    for _ in range(20):
        tree.report("explorer_1.0", 100, 1, False, 0)
    assert way(tree, 3) == [2, 1, 0]


def test_one_slow_answer_of_a_fast_source_is_forgiven():
    tree = tree_of(1, 3)
    for number in (0, 1, 2):
        tree.report(f"explorer_{number}.0", 100, 1, False, 0)
    tree.report("explorer_1.0", 1, 1, False, 0)
    assert way(tree, 2) == [1, 0]


def test_reports_about_others_and_without_bytes_change_nothing():
    tree = tree_of(1, 3)
    tree.report("process 0 of the trainer", 0, 1, True, 0)
    tree.report("explorer_1.0", 0, 0, False, 0)
    tree.report("explorer_1.0", 5, 0, False, 0)
    assert way(tree, 2) == [1, 0]


EXPLORERS = st.integers(0, 9)
EVENTS = st.one_of(
    st.tuples(st.just("join"), EXPLORERS, st.integers(0, 1)),
    st.tuples(st.just("leave"), EXPLORERS),
    st.tuples(st.just("fail"), EXPLORERS, st.integers(0, 1)),
    st.tuples(st.just("rate"), EXPLORERS, st.integers(0, 1), st.sampled_from([1, 50, 100])),
    st.tuples(st.just("wait"), st.sampled_from([1, 1000])),
)


@settings(max_examples=200, deadline=None)
@given(fanout=st.integers(1, 3), events=st.lists(EVENTS, max_size=60))
def test_every_way_ends_at_the_trainer_after_any_events(fanout, events):
    """No process is its own ancestor, and nobody asks one that has left or has just failed."""
    tree, now = RelayTree(fanout), 0.0
    there: dict[str, str] = {}
    failed: dict[str, float] = {}
    for number, (kind, *rest) in enumerate(events):
        if kind == "wait":
            now += rest[0]
            continue
        explorer, name = f"explorer_{rest[0]}", f"explorer_{rest[0]}.{[*rest, 0][1]}"
        if kind == "join":
            there.pop(name, None)
            there[name] = f"host:{number}"
            failed.pop(name, None)
            tree.join(name, there[name])
        elif kind == "leave":
            tree.leave(explorer)
            there = {one: at for one, at in there.items() if one.split(".")[0] != explorer}
            failed = {one: at for one, at in failed.items() if one in there}
        elif kind == "fail":
            tree.report(name, 0, 1, True, now)
            failed[name] = now
        else:
            tree.report(name, rest[2], 1, False, now)
    paths = {name: tree.path(name, now) for name in there}
    children = collections.Counter()
    failed = {one: at for one, at in failed.items() if now - at < 100}  # Others are forgiven.
    for name, path in paths.items():
        names = [relay.name for relay in path]
        assert name not in names
        assert len(set(names)) == len(names)
        for relay in path:
            assert relay.address == there[relay.name]
            assert relay.name.split(".")[1] == name.split(".")[1]
            assert relay.name not in failed
        if names:  # So no chain of parents comes back.
            assert names[1:] == [relay.name for relay in paths[names[0]]]
            children[names[0]] += 1
    # Those below one that failed go to its parent, so it may get more for a while.
    assert all(count <= fanout + fanout * len(failed) for count in children.values())
    assert failed or all(count <= fanout for count in children.values())
    for index in "01":
        row = [name for name in there if name.endswith(index)]
        roots = [name for name in row if not paths[name] and name not in failed]
        assert len(roots) <= fanout
        assert len(roots) == fanout or len(roots) == len(set(row) - set(failed))
