"""Games of TextArena, for one player or several; needs the package textarena."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.addons.games.extras import require
from rl_sync.addons.games.speech import said
from rl_sync.environments.interface import Message, Outcome, Reply, Standing, Turn
from rl_sync.spelling import hint

_PACKAGE = "textarena"
_NOTHING_NEW = "It is your turn."
_ACTION, _DESCRIPTION = "PLAYER_ACTION", "GAME_ACTION_DESCRIPTION"
_GAME = -1
_OF_ONE = "SinglePlayerState"
_MOST_PLAYERS = 15
_LISTED = re.compile(r"(?:available|valid|legal) (?:moves|actions)[^:\n]*:(.*)", re.I | re.DOTALL)
_MOVE = re.compile(r"\[[^\[\]\n]+\]")


class TextArenaGame:
    """A game of TextArena:
    `rl_sync.addons.games.textarena_games:TextArenaGame(game="Wordle-v0")`.

    A player sees each message of the game once, as it comes; the game itself explains how to write
    moves. At the end each player gets the game's reward. The words of other players are shown if
    the game does not describe their moves. Games with random words need word lists of NLTK, which
    must be installed before, as by `python -m nltk.downloader words`.

    Args:
      game: the game's name; a task's field `game` overrides it.
      players: number of players; 0 for the minimum of the game.
      invalid: number of consecutive illegal moves that lose the game; 0 for the game's own rule,
        usually 2.
      options: options of the game, such as `max_turns=5`.
    """

    def __init__(
        self, game: str = "", players: int = 0, invalid: int = 0, **options: object
    ) -> None:
        for name, value in (("players", players), ("invalid", invalid)):
            if value < 0:
                raise ValueError(f"{name}={value} must be at least 0.")
        self._game, self._asked, self._options = game, players, options
        self._invalid = invalid
        self._env: Any = None
        self.players = 1

    @staticmethod
    def warm_up() -> None:
        """Imports the package, once for all workers.

        Raises:
          ValueError: it is not installed.
        """
        require(_PACKAGE, TextArenaGame.__name__)

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins the game.

        Raises:
          ValueError: there is no such game, or it is for another number of players.
        """
        textarena = require(_PACKAGE, TextArenaGame.__name__)
        game = task.get("game", self._game)
        known = textarena.envs.registration.ENV_REGISTRY
        if game not in known:
            raise ValueError(f"TextArena has no game {game!r}{hint(game, known)}")
        env = textarena.make(game, **self._options)
        # Wrappers render the whole game in each turn, although the conversation already has it.
        while isinstance(env, textarena.Wrapper):
            env = env.env
        self._env, self.players = env, self._begun(env, game, seed)
        if self._invalid:
            env.state.error_allowance = self._invalid - 1
        return self._turn()

    def step(self, reply: Reply) -> Turn | Outcome:
        """Makes a move; the game itself handles moves that it does not understand."""
        is_done, _ = self._env.step(action=said(reply))
        if not is_done:
            return self._turn()
        given, infos = self._env.close()
        standings = [_standing(player, given or {}, infos) for player in range(self.players)]
        reasons = [str(info["reason"]) for info in infos.values() if info.get("reason")]
        reason = reasons[0] if reasons else ""
        if wrong := [player for player, info in infos.items() if info.get("invalid_move")]:
            reason = f"Player {wrong[0]} made an illegal move. {reason}"
        messages = (Message("user", reason),) if reason else ()
        if self.players == 1:
            (alone,) = standings
            return Outcome(alone.rewards, alone.metrics, messages=messages, why=reason)
        return Outcome({}, messages=messages, why=reason, standings=tuple(standings))

    def close(self) -> None:
        """Forgets the game."""
        self._env = None

    def _begun(self, env: Any, game: str, seed: int) -> int:
        """Resets a game with its number of players, and returns the number.

        Raises:
          ValueError: it takes another number.
        """
        faults = []
        for count in (self._asked,) if self._asked else range(1, _MOST_PLAYERS + 1):
            try:
                env.reset(num_players=count, seed=seed)
            except (AssertionError, ValueError, IndexError, KeyError) as error:
                faults.append(f"{count}: {error}")
                continue
            # Not all games for several players reject a single one.
            if count > 1 or self._asked or type(env.state).__name__ == _OF_ONE:
                return count
        raise ValueError(f"{game} cannot be played by so many players. {faults[-1]}")

    def _turn(self) -> Turn:
        player, observations = self._env.get_observation()
        # Some games give the kind as text.
        kinds = [getattr(kind, "name", kind) for _, _, kind in observations]
        says_actions = _DESCRIPTION in kinds
        texts = []
        for (by, text, _), kind in zip(observations, kinds, strict=True):
            if kind != _ACTION:
                texts.append(text)
            elif by not in (player, _GAME) and not says_actions:
                texts.append(f"Player {by}: {text}")
        message = Message("user", "\n\n".join(texts) or _NOTHING_NEW)
        moves = legal_moves(self._env, texts) if self.players > 1 else ()
        return Turn((message,), player=player, moves=moves)


def legal_moves(env: Any, texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the legal moves of the player whose turn it is; empty if unknown.

    Args:
      texts: the game's last messages to the player, which may list the moves.
    """
    state = env.state.game_state
    name = type(env).__name__
    if name == "NimEnv":
        piles = enumerate(state["piles"])
        return tuple(f"[{i} {count}]" for i, size in piles for count in range(1, size + 1))
    if name == "ConnectFourEnv":
        return tuple(f"[col {i}]" for i, top in enumerate(state["board"][0]) if top == ".")
    if name == "KuhnPokerEnv":
        return tuple(f"[{move}]" for move in state["current_legal_action_tree"])
    for text in reversed(texts):
        found = _LISTED.search(text)
        if found is not None:
            return tuple(_MOVE.findall(found[1]))
    return ()


def _standing(player: int, given: Mapping[int, float], infos: Mapping[int, Any]) -> Standing:
    info = infos.get(player, {})
    return Standing(
        rewards={"game": float(given.get(player, 0.0))},
        metrics={
            "moves": float(info.get("turn_count", 0)),
            "invalid_move": float(info.get("invalid_move", False)),
        },
    )
