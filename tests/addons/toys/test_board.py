"""Boards: answers that the pixels show, equally frequent answers, and their reward."""

import dataclasses
import itertools

import numpy as np
import pytest

from rl_sync.addons.toys.board import MOVES, Board, BoardConfig, load
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest

CONFIG = BoardConfig(problems=320, held_out_problems=80)
CHANCE = {"safe": 1 / 2, "move": 1 / 4}
"""Accuracy of the most frequent answer."""

BOARD = Board(3, frozenset({(1, 0), (1, 1)}), player=(0, 0), goal=(2, 0))
"""P#G, .#., ...: the only way is down and around."""


def board_seen(pixels, squares):
    """Reads a board from the color in the middle and in the corner of each square."""
    square = len(pixels) // squares
    start = (len(pixels) - square * squares) // 2
    holes, player, goal = set(), None, None
    for column, row in itertools.product(range(squares), repeat=2):
        x, y = start + column * square, start + row * square
        red, green, _ = pixels[y + square // 2 - 1, x + square // 2 - 1].tolist()
        if red > 200 and green < 100:
            player = column, row
        elif red < 100 and green > 100:
            goal = column, row
        elif red < 100:
            holes.add((column, row))
    return Board(squares, frozenset(holes), player, goal)


def shortest_ways(board):
    """Returns the first moves of all shortest ways, by trying all sequences of moves in turn."""
    reached = {board.player: set()}
    ends = [(board.player, None)]
    while ends and board.goal not in reached:
        further = []
        for square, first in ends:
            for move in MOVES:
                found = board.beside(square, move)
                if found and found not in board.holes and found not in reached:
                    further.append((found, first or move))
        for found, first in further:
            reached.setdefault(found, set()).add(first)
        ends = list(dict.fromkeys(further))
    return reached.get(board.goal, set())


def test_the_first_moves_go_around_holes_and_there_are_none_without_a_way():
    assert BOARD.shortest_first_moves() == ["down"]
    assert BOARD._replace(holes=frozenset()).shortest_first_moves() == ["right"]
    assert BOARD._replace(goal=(2, 2), holes=frozenset()).shortest_first_moves() == [
        "right",
        "down",
    ]
    closed = BOARD._replace(holes=BOARD.holes | {(1, 2)})
    assert closed.shortest_first_moves() == []
    assert BOARD.beside((0, 0), "left") is BOARD.beside((0, 0), "up") is None
    assert BOARD.beside((0, 0), "right") == (1, 0)


@pytest.mark.parametrize("side", [18, 28, 56])
def test_a_board_is_seen_as_it_is(side):
    random = np.random.default_rng(0)
    for board in (BOARD, *(Board.drawn(3, 0.4, random) for _ in range(20))):
        assert board_seen(board.pixels(side), 3) == board


@pytest.mark.parametrize(("side", "squares"), [(28, 4), (56, 5)])
def test_answers_agree_with_what_is_seen_in_the_image(side, squares):
    found = load(dataclasses.replace(CONFIG, side_pixels=side, squares=squares), seed=3)
    for one in (*found.train, *found.held_out):
        pixels = one.row["images"][0].pixels()
        assert pixels.shape == (side, side, 3)
        board = board_seen(pixels, squares)
        if one.row["category"] == "move":
            assert shortest_ways(board) == {one.answer}
        else:
            named = {"left": "left", "right": "right", "above": "up", "below": "down"}
            move = next(named[word] for word in one.text.split() if word in named)
            square = board.beside(board.player, move)
            assert square is not None
            assert one.answer == ("no" if square in board.holes else "yes")


@pytest.mark.gate
def test_answers_are_equally_frequent_whatever_the_question_says():
    found = load(BoardConfig(problems=1600, held_out_problems=320), seed=0)
    for part in (found.train, found.held_out):
        for kind, chance in CHANCE.items():
            for text in {one.text for one in part if one.row["category"] == kind}:
                answers = [one.answer for one in part if one.text == text]
                most = max(answers.count(answer) for answer in set(answers)) / len(answers)
                assert most == pytest.approx(chance, abs=0.01)


def test_the_reward_takes_the_right_answer_alone():
    found = load(CONFIG, seed=1)
    rubric = Rubric("vision")
    rubric.check(one.fields for one in found.train)
    for one in found.train:
        choices = one.row["choices"]
        judged = rubric.judge(
            [ScoringRequest(one.fields, Completion(choice)) for choice in choices]
        )
        assert [one.score for one in judged] == [float(c == one.answer) for c in choices]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": "safer"}, "task.board.questions='safer' is not one of safe, move; did you"),
        ({"questions": ""}, "names no question"),
        ({"side_pixels": 20}, "side_pixels=20 is too small for 4 times 4 squares: use 24 or more"),
        ({"holes": 0.0}, "task.board.holes=0 must be above 0 and at most 0.6"),
    ],
)
def test_a_config_outside_its_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **fields)
