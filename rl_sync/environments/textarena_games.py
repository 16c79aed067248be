"""Games of TextArena for one player; needs the package textarena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.environments.extras import require
from rl_sync.environments.interface import Message, Outcome, Reply, Turn
from rl_sync.environments.speech import said
from rl_sync.spelling import hint

_PACKAGE = "textarena"
_NOTHING_NEW = "It is your turn."


class TextArenaGame:
    """A game of TextArena: `rl_sync.environments.textarena_games:TextArenaGame(game="Wordle-v0")`.

    The policy sees each message of the game once, as it comes; the game's own words say how to
    write moves. The reward is the game's, given at its end. Games that draw words look for lists
    of NLTK, which are to be installed before, as by `python -m nltk.downloader words`.

    Args:
      game: the game's name; a task's field `game` goes before it.
      options: options of the game, such as `max_turns=5`.
    """

    def __init__(self, game: str = "", **options: Any) -> None:
        self._game, self._options = game, options
        self._env: Any = None

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
          ValueError: there is no such game, or it is for several players.
        """
        textarena = require(_PACKAGE, TextArenaGame.__name__)
        game = task.get("game", self._game)
        known = textarena.envs.registration.ENV_REGISTRY
        if game not in known:
            raise ValueError(f"TextArena has no game {game!r}{hint(game, known)}")
        env = textarena.make(game, **self._options)
        # Wrappers render the whole game again in each turn; the conversation has it already.
        while isinstance(env, textarena.Wrapper):
            env = env.env
        try:
            env.reset(num_players=1, seed=seed)
        except AssertionError as error:
            raise ValueError(f"{game} cannot be played by one player: {error}") from error
        self._env = env
        return self._turn()

    def step(self, reply: Reply) -> Turn | Outcome:
        """Makes a move; a game decides itself about moves that it does not understand."""
        is_done, _ = self._env.step(action=said(reply))
        if not is_done:
            return self._turn()
        rewards, infos = self._env.close()
        player = self._env.state.current_player_id
        info = infos.get(player, {})
        reason = info.get("reason")
        return Outcome(
            rewards={"game": float((rewards or {}).get(player, 0.0))},
            metrics={
                "moves": float(info.get("turn_count", 0)),
                "invalid_move": float(info.get("invalid_move", False)),
            },
            messages=(Message("user", str(reason)),) if reason else (),
        )

    def close(self) -> None:
        """Forgets the game."""
        self._env = None

    def _turn(self) -> Turn:
        _, observations = self._env.get_observation()
        # Some games give a kind as a text.
        texts = [
            text for _, text, kind in observations if getattr(kind, "name", kind) != "PLAYER_ACTION"
        ]
        return Turn((Message("user", "\n\n".join(texts) or _NOTHING_NEW),))
