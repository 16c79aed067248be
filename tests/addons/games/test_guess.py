import pytest

from rl_sync.addons.games.guess import Guess
from rl_sync.environments.interface import Outcome, Reply


def _played(hidden, said, **options):
    game = Guess(**options)
    game.reset({"prompt": "20:", "answer": str(hidden)}, seed=0)
    return [game.step(Reply(guess)) for guess in said]


def test_each_guess_is_told_to_be_too_small_or_too_large():
    low, high, found = _played(13, ["10?", "15?", "13?"])
    assert [turn.messages[0].content for turn in (low, high)] == [">", "<"]
    assert found == Outcome({"found": 1.0}, {"guesses": 3})


def test_a_guess_is_not_read_from_thoughts():
    (found,) = _played(13, ["<think>10? 15?</think>\n13"])
    assert found == Outcome({"found": 1.0}, {"guesses": 1})
    (cut,) = _played(13, ["<think>13"])
    assert (cut.rewards, cut.reason) == ({"found": 0.0}, "parse error")


def test_the_last_guess_ends_the_game():
    assert _played(13, ["1", "2"], guesses=2)[-1] == Outcome({"found": 0.0}, {"guesses": 2})
    assert _played(2, ["1", "2"], guesses=2)[-1] == Outcome({"found": 1.0}, {"guesses": 2})


@pytest.mark.parametrize("said", ["", "?", "x?", "1 2?", "-3?", "²?", "9" * 5000])
def test_what_is_no_number_ends_the_game(said):
    (outcome,) = _played(3, [said])
    assert (outcome.rewards, outcome.reason) == ({"found": 0.0}, "parse error")


def test_a_game_without_guesses_is_refused():
    with pytest.raises(ValueError, match="guesses=0 must be at least 1"):
        Guess(guesses=0)
