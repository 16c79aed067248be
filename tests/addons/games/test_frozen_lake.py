import numpy as np
import pytest

from rl_sync.addons.games.frozen_lake import FrozenLake
from rl_sync.addons.toys.board import Board
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.interface import Outcome, Reply, Turn

LAKE = "P.H/..G/..."
TASK = {"prompt": ":", "lake": LAKE}


def played(*said, task=TASK, **options):
    game = FrozenLake(side_pixels=24, **options)
    answers = [game.reset(task, seed=3)]
    return answers + [game.step(Reply(text)) for text in said]


def pictured(answer):
    (message,) = answer.messages
    assert message.content == "\ufffc:"
    return message.images[0].pixels()


def test_each_move_is_answered_with_the_new_picture_until_the_goal():
    first, down, right, end = played("down", " R ", "right")
    assert np.array_equal(pictured(first), Board.read(LAKE).pixels(24))
    assert np.array_equal(pictured(down), Board.read("..H/P.G/...").pixels(24))
    assert np.array_equal(pictured(right), Board.read("..H/.PG/...").pixels(24))
    assert end == Outcome({"reached": 1.0}, {"moves": 3})


def test_a_hole_the_last_move_and_other_words_end_the_game():
    assert played("r", "r")[-1] == Outcome({"reached": 0.0}, {"moves": 2})
    assert played("l", "l", moves=2)[-1] == Outcome({"reached": 0.0}, {"moves": 2})
    over = played("fly")[-1]
    assert (over.rewards, over.reason) == ({"reached": 0.0}, "parse error")


def test_a_move_off_the_lake_changes_nothing():
    first, again = played("up")
    assert np.array_equal(pictured(first), pictured(again))


def test_a_row_without_a_lake_gets_one_of_the_seed_with_a_way_to_the_goal():
    one, same = played(task={"prompt": ":"})[0], played(task={"prompt": ":"})[0]
    assert isinstance(one, Turn)
    assert np.array_equal(pictured(one), pictured(same))
    for seed in range(20):
        board = Board.with_a_way(4, 0.5, np.random.default_rng(seed))
        assert board.shortest_first_moves()
        assert Board.read(board.text) == board


@pytest.mark.parametrize("text", ["P.G", "PG/P.", "P./..", "P.x/.../..G", ""])
def test_texts_that_are_no_boards_are_refused(text):
    with pytest.raises(ValueError, match=r"board|goal"):
        Board.read(text)


@pytest.mark.parametrize("options", [{"squares": 1}, {"holes": 0.9}, {"moves": 0}])
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="needs at least 2 squares"):
        FrozenLake(**options)


def test_its_class_says_that_it_is_seen():
    made = Construction.of("rl_sync.addons.games.frozen_lake:FrozenLake(moves=3)")
    assert made.needs_sight
    assert made.may_show_images
    sets = "rl_sync.environments.environments_by_set:EnvironmentBySet"
    assert Construction.of(f"{sets}(a='frozen_lake')").needs_sight
    assert not Construction.of(f"{sets}(a='guess')").may_show_images
