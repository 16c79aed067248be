"""Games of several players: seats, scripted opponents, and each player's rewards."""

import asyncio
import inspect
import random

import pytest

from rl_sync.addons.games.nim import Nim, legal_moves
from rl_sync.environments.game_table import GameTable
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.guarded import Guarded
from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import (
    Message,
    Outcome,
    Reply,
    SeatedOutcome,
    SeatedTurn,
    Standing,
    Turn,
)
from rl_sync.environments.opponents import (
    Seating,
    older_versions,
    parse_opponent,
    script_of,
)


class Auction:
    """Each player in turn bids a number, twice; the highest sum wins, and each bid is told.

    A bid is paid for at once: the reward of a reply is minus a tenth of it.
    """

    def __init__(self, players=3, kind="proper"):
        self._count, self._kind = players, kind

    def reset(self, task, seed):
        self.players = self._count
        self.sums, self.said, self.news = [0] * self.players, 0, [[] for _ in range(self.players)]
        return self.turn(0.0)

    def step(self, reply):
        player = self.said % self.players
        bid = int(reply.text)
        self.sums[player] += bid
        for news in self.news:
            news.append(f"player {player} bids {bid}")
        self.said += 1
        if self.said < 2 * self.players:
            return self.turn(-bid / 10)
        if self._kind == "rewards":
            return Outcome({"won": 1.0})
        if self._kind == "few":
            return Outcome({}, standings=(Standing({"won": 1.0}),))
        if self._kind == "broken":
            return Outcome({}, why="the auctioneer left")
        best = max(self.sums)
        standings = [Standing({"won": float(s == best)}, {"sum": float(s)}) for s in self.sums]
        return Outcome({}, {"bids": float(self.said)}, standings=tuple(standings))

    def turn(self, reward):
        player = self.said % self.players
        news, self.news[player] = self.news[player], []
        text = "; ".join([f"you are player {player}", *news])
        moves = ("1", "2", "3")
        return Turn((Message("user", text),), reward=reward, player=player, moves=moves)

    def close(self):
        pass


class AuctionInCoroutines(Auction):
    async def reset(self, task, seed):
        await asyncio.sleep(0)
        return super().reset(task, seed)

    async def step(self, reply):
        await asyncio.sleep(0)
        return super().step(reply)


class Alone:
    """A game of one player, who is not seated."""

    def reset(self, task, seed):
        return Turn((Message("user", "?"),))

    def step(self, reply):
        return Outcome({"right": 1.0})

    def close(self):
        pass


def three(view):
    """Bids as much as it can; a scripted player of the user's."""
    return view.moves[-1]


def by_number(view):
    return str(view.player + 1)


async def parrot(view, plus=0):
    """Bids what the last one of the others did, after a while."""
    await asyncio.sleep(0)
    bids = view.text.split("bids ")
    return str(min(3, int(bids[-1][0]) + plus)) if len(bids) > 1 else "1"


class Counting:
    """Bids 1, then 2: it remembers, but not from game to game."""

    def __init__(self, first=1):
        self._bid = first - 1

    def __call__(self, view):
        assert len(view.messages) % 2
        self._bid += 1
        return str(self._bid)


def wrong(view):
    return 7


HERE = f"{__file__}:"


def settled(value):
    async def wait():
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def seat(game, number=0, seat=None, opponent="first", seed=4):
    table = GameTable(game, Seating(number, seat, opponent))
    return table, settled(table.reset({"prompt": "345"}, seed))


def bid(table, text):
    return settled(table.step(Reply(text)))


@pytest.mark.parametrize("game", [Auction, AuctionInCoroutines])
def test_a_player_of_three_sees_its_own_view_and_gets_its_own_rewards(game):
    table, turn = seat(game(), number=4)
    assert isinstance(turn, SeatedTurn)
    assert (turn.player, turn.seat, turn.learns, turn.reward) == (1, 1, True, 0.0)
    assert turn.messages[0].content == "you are player 1; player 0 bids 1"
    assert turn.played == ((0, "first", "1"),)
    assert turn.moves == (), "no policy sees the legal moves"
    turn = bid(table, "3")
    assert turn.messages[0].content.endswith("player 1 bids 3; player 2 bids 1; player 0 bids 1")
    assert turn.reward == pytest.approx(-0.3)
    assert turn.played == ((2, "first", "1"), (0, "first", "1"))
    outcome = bid(table, "2")
    assert isinstance(outcome, SeatedOutcome)
    assert outcome.rewards == {"won": 1.0, "late_turns": pytest.approx(-0.2)}
    assert outcome.metrics == {
        "bids": 6.0,
        "won": 1.0,
        "drawn": 0.0,
        "lost": 0.0,
        "won_as_player_1": 1.0,
        "sum": 5.0,
        "opponent/sum": 2.0,
    }
    assert outcome.played == ((2, "first", "1"),)


def test_seats_go_round_with_the_groups_unless_one_is_named():
    assert [seat(Auction(), number=n)[1].seat for n in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [seat(Auction(), number=n, seat=2)[1].seat for n in range(4)] == [2] * 4
    with pytest.raises(ValueError, match=r"environment\.seat=3, but the game has 3 players"):
        seat(Auction(), seat=3)


def test_a_draw_is_no_win_and_a_shared_win_is_one():
    results = []
    for bids in ("1", "3"):
        table, _ = seat(Auction(2))
        bid(table, bids)
        metrics = bid(table, bids).metrics
        results.append([metrics[name] for name in ("won", "drawn", "lost")])
    assert results == [[0, 1, 0], [1, 0, 0]]
    table, _ = seat(Auction(), opponent=f"{HERE}three")
    bid(table, "1")
    assert bid(table, "1").metrics["lost"] == 1
    table, _ = seat(Auction(), opponent=f"{HERE}by_number")
    bid(table, "3")
    assert bid(table, "3").metrics["won"] == 1


@pytest.mark.parametrize(
    ("opponent", "moves"),
    [
        ("three", "333"),
        ("parrot", "222"),
        ("parrot(plus=1)", "333"),
        ("Counting", "112"),
        ("Counting(first=2)", "223"),
    ],
)
def test_own_functions_and_classes_play_the_other_seats(opponent, moves):
    table, first = seat(Auction(), opponent=HERE + opponent)
    second = bid(table, "2")
    assert first.played == ()
    played = [*second.played, *bid(table, "2").played]
    assert "".join(text for _, _, text in played[:2]) + played[2][2] == moves
    assert {by for _, by, _ in played} == {HERE + opponent}


def test_random_opponents_play_alike_for_a_seed_and_leave_global_draws_alone():
    def moves(seed):
        random.seed(1)
        table, _ = seat(Nim(), number=1, opponent="random", seed=seed)
        answer, state = None, random.getstate()
        played = []
        piles = [3, 4, 5]
        table, answer = seat(Nim(), number=1, opponent="random", seed=seed)
        while isinstance(answer, Turn):
            played += answer.played
            piles = [int(c) for c in answer.messages[0].content[:-1]]
            answer = bid(table, legal_moves(piles)[0])
        assert random.getstate() == state
        return played

    assert moves(1) == moves(1)
    assert len({str(moves(seed)) for seed in range(8)}) > 4


def test_a_policy_plays_the_other_seats_by_turns_of_their_own():
    table, turn = seat(Auction(2), number=1, opponent="self")
    assert (turn.player, turn.learns, turn.reward) == (0, False, 0.0)
    turn = bid(table, "3")
    assert (turn.player, turn.learns, turn.reward) == (1, True, 0.0)
    turn = bid(table, "2")
    assert (turn.player, turn.learns, turn.reward) == (0, False, 0.0)
    turn = bid(table, "1")
    assert (turn.player, turn.learns) == (1, True)
    assert turn.reward == pytest.approx(-0.2), "of its own reply, and not of the other's"
    assert bid(table, "1").rewards == {"won": 0.0}


def test_a_game_may_be_over_before_the_learner_s_turn():
    _, outcome = seat(Nim(), number=1, opponent=f"{HERE}three")
    assert isinstance(outcome, Turn)
    table = GameTable(Nim(), Seating(1, None, f"{HERE}three"))
    outcome = settled(table.reset({"prompt": "2"}, 0))
    assert isinstance(outcome, SeatedOutcome)
    assert outcome.rewards == {"game": -1.0}
    assert outcome.played == ((0, f"{HERE}three", "a2;"),)


def test_an_illegal_move_loses_and_the_reason_is_said():
    table, _ = seat(Nim(), opponent="random")
    outcome = bid(table, "d1;")
    assert outcome.rewards == {"game": -1.0}
    assert outcome.why == "player 0: 'd1;' is no move"
    assert outcome.metrics["illegal"] == 1.0
    assert outcome.metrics["opponent/illegal"] == 0.0
    table, outcome = seat(Nim(), number=1, opponent=f"{HERE}Counting")
    assert outcome.rewards == {"game": 1.0}
    assert outcome.metrics["opponent/illegal"] == 1.0


@pytest.mark.parametrize(
    ("game", "opponent", "why"),
    [
        (Auction(kind="rewards"), "first", "whose are they"),
        (Auction(kind="few"), "first", "must give a Standing of each of its 3 players"),
        (Auction(), f"{HERE}wrong", "must return its reply, a text"),
        (Auction(), f"{HERE}nobody", "has no 'nobody'"),
        (Auction(), f"{HERE}three(level=2)", "takes a View, and then its options"),
        (Auction(), f"{HERE}Counting(level=2)", "takes its options"),
    ],
)
def test_mistakes_have_messages(game, opponent, why):
    def play():
        table, _ = seat(game, opponent=opponent)
        for _ in range(4):
            bid(table, "1")

    with pytest.raises(ValueError, match=why):
        play()


def test_a_game_that_could_not_be_judged_has_no_rewards():
    table, _ = seat(Auction(kind="broken"))
    bid(table, "1")
    outcome = bid(table, "1")
    assert (outcome.rewards, outcome.why) == ({}, "the auctioneer left")


def test_a_game_of_one_player_passes_as_it_is():
    table, turn = seat(Alone())
    assert type(turn) is Turn
    assert table.step(Reply("x")) == Outcome({"right": 1.0})


def test_games_that_do_not_count_their_players_are_refused():
    class Uncounted(Auction):
        def reset(self, task, seed):
            turn = super().reset(task, seed)
            del self.players
            self._made = turn
            return Turn(turn.messages, player=1)

    construction = Construction("x:Uncounted", "x:Uncounted", Uncounted, {}, inline=True)
    with asyncio.Runner() as runner:
        failure = Guarded(construction, runner).reset({}, 0, Seating(0, None, "first"))
    assert isinstance(failure, Failure)
    assert "must give a player from 0 to 0" in failure.why
    assert "sets self.players" in failure.why


def test_names_of_opponents_are_checked():
    assert parse_opponent("older(versions=7)").options == {"versions": 7}
    assert older_versions("older(versions=7)") == 7
    assert older_versions("older") == 4
    assert older_versions("self") == 0
    for name, why in {
        "radnom": "did you mean 'random'",
        "random(level=2)": "has no option 'level'",
        "older(versions=0)": "a number of at least 1",
        "self(versions=2)": "has no option",
    }.items():
        with pytest.raises(ValueError, match=why):
            parse_opponent(name)
    with pytest.raises(ValueError, match="without __call__"):
        script_of(f"{HERE}Alone")


def test_scripted_games_are_hosted_in_workers():
    with ProcessHost(f"{HERE}Auction(players=2)", HostLimits(workers=1)) as host:
        host.begin(1, {}, 0, Seating(1, None, f"{HERE}three"))
        (answer,) = host.answers(60.0)
        assert answer.result.played == ((0, f"{HERE}three", "3"),)
        assert answer.result.learns
        for _ in range(2):
            host.step(1, Reply("2"))
            (answer,) = host.answers(60.0)
        assert answer.result.rewards["won"] == 0.0
        assert answer.result.metrics["opponent/sum"] == 6.0
