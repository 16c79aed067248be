"""Games of TextArena and Gymnasium, with the real packages where they are installed."""

from __future__ import annotations

import functools
import importlib.util
import re

import pytest

from rl_sync.addons.games.drawing import written
from rl_sync.addons.games.gymnasium_games import GymnasiumGame
from rl_sync.addons.games.speech import action, said
from rl_sync.addons.games.textarena_games import TextArenaGame
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.environments.opponents import Seating

pytestmark = pytest.mark.gate


def needs(package):
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"needs the package {package}")


LAKE = {
    "game": "FrozenLake-v1",
    "actions": ("left", "down", "right", "up"),
    "options": {"is_slippery": False},
}
TO_THE_GOAL = ["down", "down", "right", "right", "down", "right"]


def text_of(turn):
    assert isinstance(turn, Turn), turn
    return turn.messages[0].content


def test_moves_are_not_read_from_thoughts():
    assert said(Reply("<think>[3] or [4]?</think> I take [5].")) == "I take [5]."
    assert said(Reply(" [5] ")) == "[5]"
    assert said(Reply("<think>[3] or [4]?")) == said(Reply("[3]?", begun="<think>")) == ""
    assert [action(text) for text in ("I take [5], no, [6].", " 7 ", "[ up ]")] == ["6", "7", "up"]
    game = GymnasiumGame("x")
    game._names = ("left",)
    assert "no action 'right'" in text_of(game.step(Reply("<think>[left]</think>[right]")))


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    for game in (TextArenaGame, GymnasiumGame):
        with pytest.raises(
            ValueError, match=r"needs the package \w+, .* pip install \"rl_sync\[games"
        ):
            game.warm_up()


def binary_search(first, step):
    """Guesses a number between 1 and 20; returns the texts and the last answer."""
    low, high, guess, texts, answer = 1, 20, 0, [], first
    while isinstance(answer, Turn):
        texts.append(text_of(answer))
        if "higher" in texts[-1] and len(texts) > 1:
            low = guess + 1
        elif "lower" in texts[-1] and len(texts) > 1:
            high = guess - 1
        guess = (low + high) // 2
        answer = step(f"<think>[1]</think>I guess [{guess}].")
    return texts, answer


@pytest.fixture(name="textarena", scope="module")
def _textarena():
    """Hosts games of TextArena; its import takes seconds, so this is the only one."""
    if importlib.util.find_spec("textarena") is None:
        pytest.skip("needs the package textarena")
    reference = "rl_sync.addons.games.textarena_games:TextArenaGame(game='GuessTheNumber-v0'"
    with ProcessHost(f"{reference}, max_turns=6)", HostLimits(workers=2)) as host:
        yield Hosted(host)


@pytest.fixture(name="arena", scope="module")
def _arena():
    """Hosts games of TextArena with their own options."""
    if importlib.util.find_spec("textarena") is None:
        pytest.skip("needs the package textarena")
    reference = "rl_sync.addons.games.textarena_games:TextArenaGame"
    with ProcessHost(reference, HostLimits(workers=1)) as host:
        yield Hosted(host)


class Hosted:
    """Episodes in worker processes."""

    def __init__(self, host):
        self.host = host

    def begin(self, episode, **task):
        self.host.begin(episode, task, seed=3)
        return self.answer(episode)

    def step(self, episode, text):
        self.host.step(episode, Reply(text))
        return self.answer(episode)

    def answer(self, episode):
        (answer,) = self.host.answers(60.0)
        assert answer.episode == episode
        return answer.result


def test_games_of_textarena_are_played_to_their_end_beside_each_other(textarena):
    begun = {episode: textarena.begin(episode) for episode in (1, 2)}
    played = [
        binary_search(first, functools.partial(textarena.step, episode))
        for episode, first in begun.items()
    ]
    texts, outcome = played[0]
    assert "within 6 turns" in texts[0]
    assert all(re.fullmatch(r"The target number is (higher|lower)\.", text) for text in texts[1:])
    assert outcome.rewards == {"game": 1.0}
    assert outcome.metrics == {"moves": float(len(texts)), "invalid_move": 0.0}
    assert "Congratulations" in outcome.messages[0].content
    assert played[1] == played[0]


def test_textarena_judges_moves_that_it_does_not_understand(textarena):
    textarena.begin(1)
    assert "invalid move" in text_of(textarena.step(1, "five"))
    outcome = textarena.step(1, "five")
    assert outcome.metrics["invalid_move"] == 1.0
    assert outcome.rewards == {"game": 0.0}


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("GuessTheNumbr-v0", "no game 'GuessTheNumbr-v0'; did you mean 'GuessTheNumber"),
    ],
)
def test_games_that_do_not_exist_are_refused(textarena, game, why):
    failure = textarena.begin(1, game=game)
    assert isinstance(failure, Failure)
    assert why in failure.why


def seated(hosted, game, number, opponent, policy):
    """Plays a game of several players; the policy answers to (text, player)."""
    hosted.host.begin(1, {"game": game}, 3, Seating(number, None, opponent))
    answer, texts, rewards = hosted.answer(1), [], []
    while isinstance(answer, Turn):
        texts.append((answer.player, answer.learns, text_of(answer)))
        rewards.append(answer.reward)
        answer = hosted.step(1, policy(text_of(answer), answer.player))
    assert not any(rewards)
    return texts, answer


def listed(text, player):
    """Takes the last move that the text offers."""
    return re.findall(r"\[\w+\]", text.rpartition("vailable")[2])[-1]


def test_a_policy_plays_each_seat_of_a_game_of_two(arena):
    for number in (0, 1):
        texts, outcome = seated(arena, "TicTacToe-v0", number, "first", listed)
        assert {player for player, _, _ in texts} == {outcome.seat} == {number}
        assert f"You are Player {number} in Tic Tac Toe" in texts[0][2]
        assert sum(outcome.metrics[name] for name in ("won", "drawn", "lost")) == 1
        assert outcome.rewards["game"] == outcome.metrics["won"] - outcome.metrics["lost"]
        assert [text for _, _, text in outcome.played or texts[-1:]]


@pytest.mark.nightly
def test_each_seat_of_a_game_is_shown_what_is_its_own(arena):
    texts, outcome = seated(arena, "KuhnPoker-v0", 0, "self", listed)
    cards = {player: re.findall(r"Your card is: '(\w)'", text) for player, _, text in texts[:2]}
    assert [len(set(cards[player])) for player in (0, 1)] == [1, 1]
    assert not {*cards[0]} & {*cards[1]}
    assert all(learns == (player == 0) for player, learns, _ in texts)
    assert outcome.rewards["game"] in (-1.0, 0.0, 1.0)
    assert texts == seated(arena, "KuhnPoker-v0", 0, "self", listed)[0]


@pytest.mark.parametrize(
    ("game", "wrong"),
    [
        ("TicTacToe-v0", "[9]"),
        ("ConnectFour-v0", "[col 7]"),
        ("Nim-v0", "[0 9]"),
        ("KuhnPoker-v0", "I fold."),
    ],
)
def test_illegal_moves_of_games_of_two_lose_with_their_reason(arena, game, wrong):
    texts, outcome = seated(arena, game, 1, "random", lambda text, player: wrong)
    assert "attempted an invalid move" in texts[-1][2]
    assert outcome.rewards == {"game": -1.0}
    assert outcome.why.startswith("Player 1 made an illegal move. ")
    assert outcome.metrics["invalid_move"] == outcome.metrics["lost"] == 1.0
    assert outcome.metrics["opponent/invalid_move"] == 0.0


def test_scripted_opponents_know_the_moves_of_games_of_two_and_three(arena):
    for game in ("TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "KuhnPoker-v0"):
        texts, outcome = seated(arena, game, 0, "random", lambda text, player: "[9 9]")
        assert outcome.metrics["opponent/invalid_move"] == 0.0, game
    game = "ThreePlayerTicTacToe-v0"
    texts, outcome = seated(arena, game, 2, "random", listed)
    assert texts[0][2].count("Player") >= 2
    assert outcome.metrics["opponent/invalid_move"] == 0.0
    assert outcome.seat == 2


def test_what_other_players_say_is_shown_where_the_game_does_not_tell_it(arena):
    words = iter("abcdefgh")
    texts, _ = seated(
        arena, "IteratedPrisonersDilemma-v0", 0, "self", lambda text, player: next(words, "x")
    )
    said = " ".join(text for player, _, text in texts if player == 1)
    assert "Player 0: a" in said
    assert "Player 1: " not in said


@pytest.mark.nightly
def test_a_number_of_players_that_a_game_does_not_take_is_refused():
    reference = "rl_sync.addons.games.textarena_games:TextArenaGame(players=3, invalid=1)"
    with ProcessHost(reference, HostLimits(workers=1)) as host:
        hosted = Hosted(host)
        failure = hosted.begin(1, game="Nim-v0")
        assert "Nim-v0 cannot be played by so many players. 3: " in failure.why
        texts, outcome = seated(
            hosted, "ThreePlayerTicTacToe-v0", 0, "random", lambda text, player: "five"
        )
        assert len(texts) == 1, "the first illegal move loses"
        assert outcome.metrics["invalid_move"] == 1.0


@needs("gymnasium")
def test_a_game_of_gymnasium_is_played_to_its_end():
    game = GymnasiumGame(**LAKE, prompt="Reach G.")
    first = text_of(game.reset({}, 0))
    assert first.startswith("Reach G.\n\n\n(S)FFF\nFHFH")
    assert first.endswith("square brackets: [left], [down], [right], [up].")
    for move in TO_THE_GOAL[:-1]:
        turn = game.step(Reply(f"[{move.upper()}]"))
        assert turn.reward == 0.0
    assert "HF(F)G" in text_of(turn)
    outcome = game.step(Reply("[right]"))
    assert outcome.rewards == {"game": 1.0}
    assert outcome.metrics == {"return": 1.0, "steps": 6.0}
    assert outcome.reason == "done"
    game.close()


@needs("gymnasium")
def test_unknown_actions_change_nothing_and_end_an_episode_if_there_are_too_many():
    game = GymnasiumGame(**LAKE, invalid=2)
    game.reset({}, 0)
    for move in ("jump", "down", "jump"):
        turn = game.step(Reply(f"[{move}]"))
    assert text_of(turn).startswith("There is no action 'jump'. Write one of")
    outcome = game.step(Reply("[jump]"))
    assert outcome == Outcome({}, metrics={"return": 0.0, "steps": 1.0}, reason="parse error")


@needs("gymnasium")
def test_the_end_by_a_limit_of_steps_has_its_own_reason():
    game = GymnasiumGame(**LAKE | {"options": {"is_slippery": False, "max_episode_steps": 2}})
    game.reset({"prompt": "A prompt of the task."}, 0)
    game.step(Reply("[left]"))
    assert game.step(Reply("[left]")).reason == "turns"


@needs("gymnasium")
def test_rewards_of_steps_stand_in_their_turns():
    game = GymnasiumGame("CliffWalking-v1")
    game.reset({}, 0)
    assert game.step(Reply("[0]")).reward == -1.0


LANDMARKS = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}


def route(board, start, goal):
    """Finds moves of the taxi in what it is shown, walls included; breadth first."""
    rows = [line[1:-1] for line in board.splitlines() if line.startswith("|")]
    rows = [row.replace("(", "").replace(")", "") for row in rows]
    moves = {"south": (1, 0), "north": (-1, 0), "east": (0, 1), "west": (0, -1)}
    seen, todo = {start}, [(start, [])]
    for (row, column), path in todo:
        if (row, column) == goal:
            return path
        for name, (down, right) in moves.items():
            there = row + down, column + right
            if there in seen or not (0 <= there[0] < 5 and 0 <= there[1] < 5):
                continue
            if right and rows[row][2 * max(column, there[1]) - 1] == "|":
                continue
            seen.add(there)
            todo.append((there, [*path, name]))
    raise AssertionError(board)


@needs("gymnasium")
@pytest.mark.parametrize("seed", range(12))
def test_taxi_is_solved_by_who_reads_its_text_alone(seed):
    names = ("south", "north", "east", "west", "pickup", "dropoff")
    game = GymnasiumGame("Taxi-v4", actions=names)
    text = text_of(game.reset({}, seed))
    said = re.search(r"row (\d), column (\d).*waiting at (\w)\. The destination is (\w)", text)
    at, passenger, goal = (int(said[1]), int(said[2])), LANDMARKS[said[3]], LANDMARKS[said[4]]
    there, back = route(text, at, passenger), route(text, passenger, goal)
    for move in [*there, "pickup", *back]:
        text = text_of(game.step(Reply(f"[{move}]")))
        assert "\x1b" not in text
    assert f"The passenger is in the taxi. The destination is {said[4]}." in text
    outcome = game.step(Reply("[dropoff]"))
    assert outcome.rewards == {"game": 20.0}
    assert outcome.reason == "done"


@needs("gymnasium")
def test_blackjack_says_what_its_numbers_are():
    text = text_of(GymnasiumGame("Blackjack-v1", actions=("stick", "hit")).reset({}, 3))
    assert re.match(r"Your cards sum to \d+, with (no|a) usable ace\. The dealer shows \d+\.", text)


def test_colors_of_drawings_are_said_in_words():
    one = "ab\x1b[41mc\x1b[0md\n"
    assert written(one) == "ab(c)d\n"
    both = "\x1b[32;1mK\x1b[0m.\n.\x1b[35m\x1b[103mE\x1b[0m\x1b[0m.\x1b[2K\n"
    assert written(both).splitlines() == [
        "K.",
        ".(E).",
        "green: 'K' (line 1, column 1)",
        "magenta: 'E' (line 2, column 2)",
        "on yellow: 'E' (line 2, column 2)",
    ]
    assert written(both, says_colors=False) == "K.\n.(E).\n"
    assert written("no color [4m]") == "no color [4m]"


@needs("gymnasium")
def test_spaces_without_names_are_refused():
    with pytest.raises(ValueError, match="Pendulum-v1 has actions of the space Box"):
        GymnasiumGame("Pendulum-v1").reset({}, 0)
    with pytest.raises(ValueError, match="FrozenLake-v1 has 4 actions, and 1 names: up"):
        GymnasiumGame("FrozenLake-v1", actions=("up",)).reset({}, 0)


@needs("gymnasium")
def test_a_game_of_gymnasium_is_hosted_in_a_worker():
    reference = "rl_sync.addons.games.gymnasium_games:GymnasiumGame(game='CliffWalking-v1')"
    with ProcessHost(reference, HostLimits(workers=1)) as host:
        hosted = Hosted(host)
        assert "[0]" in text_of(hosted.begin(1))
        assert hosted.step(1, "[0]").reward == -1.0
