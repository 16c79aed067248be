"""The embedded backend's tables and selections, against simple models of them."""

import collections
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.replay import selection
from rl_sync.replay.store import EmbeddedTable, Stored
from rl_sync.replay.tables import TableSpec, queue

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "update", "delete"]), st.integers(0, 30), st.floats(0, 9))
)


@given(OPERATIONS)
def test_prioritized_probabilities_follow_any_history(operations):
    chosen, model = selection.make("prioritized", 0.5, random.Random(0)), {}
    for what, key, priority in operations:
        if what == "insert" and key not in model:
            chosen.insert(key, priority)
            model[key] = priority**0.5
        elif what == "update" and key in model:
            chosen.update(key, priority)
            model[key] = priority**0.5
        elif what == "delete" and key in model:
            chosen.delete(key)
            del model[key]
    if not model:
        return
    total = sum(model.values())
    for _ in range(20):
        key, probability = chosen.pick()
        expected = model[key] / total if total > 0 else 1 / len(model)
        assert probability == pytest.approx(expected, rel=1e-9)
        assert probability > 0


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_random_selections_follow_their_probabilities_after_deletions(kind):
    chosen = selection.make(kind, 1.0, random.Random(0))
    for key in range(8):
        chosen.insert(key, 1.0 + key % 2)
    for key in (0, 7, 3):
        chosen.delete(key)
    counts = collections.Counter(chosen.pick()[0] for _ in range(7000))
    weights = {1: 2, 2: 1, 4: 1, 5: 2, 6: 1} if kind == "prioritized" else dict.fromkeys(counts, 1)
    assert set(counts) == {1, 2, 4, 5, 6}
    for key, weight in weights.items():
        assert counts[key] == pytest.approx(7000 * weight / sum(weights.values()), abs=200)


def test_an_insert_of_a_known_key_sets_its_priority():
    table = EmbeddedTable(queue("q", 3))
    table.submit(Stored(1, 1.0, "a"))
    table.submit(Stored(1, 5.0, "a"))
    assert table.info().current_size == 1
    [drawn] = table.sample(2, time.monotonic())
    assert drawn.priority == 5.0


def test_a_table_that_was_emptied_fills_up_again_whatever_the_limiter_says():
    spec = TableSpec("q", 9, max_times_sampled=1, min_size_to_sample=2, max_diff=0.5)
    table, keys = EmbeddedTable(spec), iter(range(9))

    def enters():
        item = Stored(next(keys), 1.0, "a")
        table.submit(item)
        return item.inserted

    assert [enters(), enters(), enters()] == [True, True, False]
    assert len(table.sample(2, time.monotonic())) == 2, "the third enters once one is gone"
    assert table.info().current_size == 1
    assert [enters(), enters()] == [True, False]
