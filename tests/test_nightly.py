"""The parts of the nightly tests, and of the gate's: a round of commits covers all of them."""

from __future__ import annotations

import hashlib
import random
from unittest import mock

import pytest

from tests import nightly, tiers
from tests.nightly import Piece

NIGHTLY, GATE = nightly.TIERS["nightly"], nightly.TIERS["gate"]
SECS = {Piece(f"tests/test_{number}.py"): float(number % 90 + 5) for number in range(100)}


def commits(seed: int, count: int) -> list[str]:
    return [hashlib.sha1(f"{seed} {number}".encode()).hexdigest() for number in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_parts_have_every_piece_once_and_are_about_equally_long(seed):
    drawn = random.Random(seed)
    secs = SECS | {
        Piece("tests/more.py", n, 20): drawn.uniform(1, NIGHTLY.piece_secs) for n in range(20)
    }
    made = nightly.parts(secs, NIGHTLY.part_secs)
    assert sorted(piece for part in made for piece in part) == sorted(secs)
    took = [sum(secs[piece] for piece in part) / nightly.PROCESSES for part in made]
    assert max(took) <= NIGHTLY.part_secs * 1.1
    assert max(took) - min(took) <= 100


@pytest.mark.parametrize("seed", range(5))
def test_each_round_of_commits_covers_all_parts(seed):
    count = 10
    history = commits(seed, 40)
    taken = [nightly.part_of(history[: end + 1], count) for end in range(40)]
    for start in range(0, 40, count):
        assert sorted(taken[start : start + count]) == list(range(count))
    assert taken[:count] != taken[count : 2 * count], "the order does not depend on the hash"


def test_a_clone_without_history_takes_the_part_of_its_hash():
    (only,) = commits(0, 1)
    assert nightly.part_of([only], 7) == int(only, 16) % 7


def test_every_file_with_a_nightly_test_is_in_a_part_and_a_long_one_in_pieces():
    named = nightly.pieces(NIGHTLY)
    paths = {piece.path for piece in named}
    assert {"tests/test_wheel.py", "tests/runs/test_conformance.py"} <= paths
    assert "tests/test_schedule.py" not in paths
    of_restarts = sorted(piece for piece in named if piece.path == "tests/runs/test_restarts.py")
    assert [piece.number for piece in of_restarts] == list(range(of_restarts[0].total))
    assert all(secs <= NIGHTLY.piece_secs for secs in named.values())


def test_the_gates_tests_are_in_parts_of_whole_files():
    named = nightly.pieces(GATE)
    assert {piece.total for piece in named} == {1}
    assert "tests/runs/test_conformance.py" in {piece.path for piece in named}
    made = nightly.parts(named, GATE.part_secs)
    assert 1 < len(made) <= 7, "each is run in every sixth time or so"
    assert sorted(piece for part in made for piece in part) == sorted(named)


class Item:
    """A nightly test of a case, as far as it is chosen by."""

    def __init__(self, test: str, case: str):
        self.nodeid = f"tests/test_it.py::{test}[{case}]"
        self.callspec = mock.Mock(id=case)

    def get_closest_marker(self, name: str) -> bool:
        return name == "nightly"


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pieces_of_a_file_have_every_case_once_with_all_of_its_tests(count):
    items = [Item(test, case) for test in "ab" for case in "uvwxyz"]
    taken = []
    for number in range(count):
        chosen = [*items]
        tiers._leave_pieces(
            mock.Mock(**{"option.piece": [f"tests/test_it.py:{number}/{count}"]}), chosen
        )
        taken += chosen
        assert len({one.callspec.id for one in chosen}) == len(chosen) / 2
    assert sorted(taken, key=items.index) == items
    both = [*items]
    given = [f"tests/test_it.py:{number}/7" for number in (1, 3)]
    tiers._leave_pieces(mock.Mock(**{"option.piece": given}), both)
    assert {one.callspec.id for one in both} == {"v", "x"}
