"""Pages are given, shared, cached and given again, and none is lost or given twice."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.rollout.paging.page_pool import PagePool, prefix_keys

COUNT = 6
KEYS = [bytes([number]) for number in range(8)]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 99)),
        st.tuples(st.just("forget")),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_any_sequence_of_operations_keeps_every_page_in_one_place(operations):
    pool, live = PagePool(COUNT), []
    named = {}  # The key under which each page was last filled.
    for operation, *values in operations:
        match operation:
            case "begin":
                first, length, more = values
                keys = KEYS[first : first + length]
                found = pool.find(keys)
                needed = len(keys) - len(found) + more
                if pool.remaining(found) < needed:
                    continue
                assert [named[page] for page in found] == keys[: len(found)]
                pool.share(found)
                taken = pool.take(needed)
                for page in taken:
                    named.pop(page, None)
                for key, page in zip(keys[len(found) :], taken, strict=False):
                    pool.name(page, key)
                    named[page] = key
                live.append(found + taken)
            case "end" if live:
                pool.drop(live.pop(values[0] % len(live)))
            case "forget":
                pool.forget_prefixes()
                assert not any(pool.find([key]) for key in KEYS)
        users = collections.Counter(page for pages in live for page in pages)
        assert [pool.users(page) for page in range(COUNT)] == [users[p] for p in range(COUNT)]
        assert pool.used == len(users)
        assert pool.shared == sum(users.values()) - len(users)
        for pages in live:
            assert len(set(pages)) == len(pages)
    for pages in live:
        pool.drop(pages)
    pool.forget_prefixes()
    assert sorted(pool.take(COUNT)) == list(range(COUNT))


def test_the_prefix_used_longest_ago_makes_room_and_its_last_page_first():
    pool = PagePool(4)
    older, newer = pool.take(2), pool.take(2)
    for page, key in zip([*older, *newer], KEYS, strict=False):
        pool.name(page, key)
    pool.drop(older)
    pool.drop(newer)
    pool.share(pool.find(KEYS[2:4]))
    pool.drop(newer)
    assert pool.available == 4
    assert pool.take(1) == older[1:], "the first page is still found"
    assert pool.find(KEYS[:2]) == older[:1]
    assert pool.take(2) == [older[0], newer[1]]
    assert pool.find(KEYS[2:4]) == newer[:1]


def test_cached_pages_that_a_sequence_begins_with_are_not_available_to_it():
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.name(page, KEYS[0])
    pool.drop([page])
    assert pool.available == 2
    assert pool.remaining(pool.find(KEYS[:1])) == 1


def test_a_key_stands_for_all_tokens_up_to_the_end_of_its_page_and_for_what_computed_them():
    tokens = np.arange(8)
    keys = prefix_keys((3,), tokens, 2)
    assert len(keys) == 3, "the page with the last token has none"
    assert prefix_keys((3,), tokens[:7], 2) == keys
    assert prefix_keys((3,), tokens[:5], 2) == keys[:2]
    assert not set(keys) & set(prefix_keys((4,), tokens, 2))
    other = prefix_keys((3,), np.array([0, 1, 2, 9, 4, 5, 6, 7]), 2)
    assert other[0] == keys[0]
    assert not set(other[1:]) & set(keys)


@pytest.mark.parametrize("length", [1, 2])
def test_a_prompt_within_one_page_has_no_key(length):
    assert prefix_keys((0,), np.arange(length), 2) == ()
