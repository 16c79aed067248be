"""Gymnasium's environments with observations and actions as text; needs the package gymnasium."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_sync.addons.games.drawing import written
from rl_sync.addons.games.extras import require
from rl_sync.addons.games.speech import action, said
from rl_sync.environments.interface import Message, Outcome, Reply, Turn

_PACKAGE = "gymnasium"
_LANDMARKS = ("R", "G", "Y", "B")


class GymnasiumGame:
    """Puts an environment of Gymnasium into words.

    `rl_sync.addons.games.gymnasium_games:GymnasiumGame(game="FrozenLake-v1",
    actions=("left", "down", "right", "up"), options={"is_slippery": False})`

    Text observations are shown as they are. Other observations are drawn if the environment has the
    render mode `ansi`, and printed if it has not. In drawings, parts with a colored background are
    in parentheses. Other colors are described in words, as are the states of Blackjack and Taxi.
    The policy writes an action in square brackets; the last one in a reply counts. The reward of a
    step is the reward of its turn; that of the last step is the outcome's. An unknown action
    changes nothing.

    Args:
      game: the registered name, such as `FrozenLake-v1` or `module:Name-v0`.
      actions: names of the actions, in the order of their numbers; if empty, the numbers.
        An environment with text actions takes any text.
      prompt: start of the first message; a task's field `prompt` overrides it.
      options: options of the environment.
      invalid: number of consecutive unknown actions that ends the episode without a reward.
    """

    def __init__(
        self,
        game: str,
        actions: Sequence[str] = (),
        prompt: str = "",
        options: Mapping[str, Any] | None = None,
        invalid: int = 3,
    ) -> None:
        self._game, self._prompt, self._options = game, prompt, dict(options or {})
        self._names, self._most_invalid = tuple(actions), invalid
        self._env: Any = None
        self._draws = False
        self._return, self._steps, self._invalid = 0.0, 0, 0

    @staticmethod
    def warm_up() -> None:
        """Imports the package, once for all workers.

        Raises:
          ValueError: it is not installed.
        """
        require(_PACKAGE, GymnasiumGame.__name__)

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins the game.

        Raises:
          ValueError: the game's actions are neither texts nor numbers, or not as many as the names.
        """
        self._env, self._draws = _made(self._game, self._options)
        self._names = _names(self._env.action_space, self._names, self._game)
        self._return, self._steps, self._invalid = 0.0, 0, 0
        observation, _ = self._env.reset(seed=seed)
        prompt = str(task.get("prompt", self._prompt))
        parts = [prompt, self._shown(observation), self._instruction()]
        return _turn("\n\n".join(part for part in parts if part))

    def step(self, reply: Reply) -> Turn | Outcome:
        """Takes an action."""
        text = action(said(reply))
        chosen: Any = text
        if self._names:
            if text.lower() not in self._names:
                return self._unknown(text)
            chosen = self._env.action_space.start + self._names.index(text.lower())
        self._invalid = 0
        observation, reward, is_over, is_cut, _ = self._env.step(chosen)
        self._return += float(reward)
        self._steps += 1
        shown = self._shown(observation)
        if not (is_over or is_cut):
            return _turn(shown, float(reward))
        return Outcome(
            rewards={"game": float(reward)},
            metrics=self._metrics(),
            reason="done" if is_over else "turns",
            messages=(Message("user", shown),),
        )

    def close(self) -> None:
        """Closes the game."""
        if self._env is not None:
            self._env.close()

    def _unknown(self, text: str) -> Turn | Outcome:
        self._invalid += 1
        if self._invalid >= self._most_invalid:
            return Outcome(rewards={}, metrics=self._metrics(), reason="parse error")
        return _turn(f"There is no action {text[:100]!r}. {self._instruction()}")

    def _instruction(self) -> str:
        if not self._names:
            return "Write your action in square brackets."
        names = ", ".join(f"[{name}]" for name in self._names)
        return f"Write one of these actions in square brackets: {names}."

    def _metrics(self) -> dict[str, float]:
        return {"return": self._return, "steps": float(self._steps)}

    def _shown(self, observation: object) -> str:
        if isinstance(observation, str):
            return observation
        state = getattr(self._env, "unwrapped", self._env)
        words = _WORDS.get(type(state).__name__)
        said = "" if words is None else words(state, observation)
        if not self._draws:
            return said or str(observation)
        drawn = written(str(self._env.render()), says_colors=not said)
        return f"{drawn.rstrip()}\n{said}" if said else drawn


def _taxi(state: Any, observation: Any) -> str:
    row, column, passenger, goal = (int(part) for part in state.decode(int(observation)))
    in_taxi = passenger >= len(_LANDMARKS)
    where = "in the taxi" if in_taxi else f"waiting at {_LANDMARKS[passenger]}"
    return (
        f"The taxi ( ) is in row {row}, column {column}, counted from 0. The passenger is {where}."
        f" The destination is {_LANDMARKS[goal]}."
    )


def _blackjack(state: Any, observation: Any) -> str:
    del state
    total, dealer, ace = (int(part) for part in observation)
    has = "a usable ace" if ace else "no usable ace"
    return f"Your cards sum to {total}, with {has}. The dealer shows {dealer}."


_WORDS: dict[str, Callable[[Any, Any], str]] = {"TaxiEnv": _taxi, "BlackjackEnv": _blackjack}
"""Descriptions of the state, by class of environment, if a drawing is not enough."""


def _made(game: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Makes an environment; also says whether it draws its observations as text."""
    gymnasium = require(_PACKAGE, GymnasiumGame.__name__)
    with contextlib.suppress(Exception):  # It may raise any error if there are no modes.
        modes = gymnasium.make(game, **options).metadata.get("render_modes", ())
        if "ansi" in modes:
            return gymnasium.make(game, render_mode="ansi", **options), True
    return gymnasium.make(game, **options), False


def _names(space: Any, names: Sequence[str], game: str) -> tuple[str, ...]:
    """Returns the names of a game's actions; none if they are texts."""
    kind = type(space).__name__
    if kind == "Text":
        return ()
    if kind != "Discrete":
        raise ValueError(f"{game} has actions of the space {space}, which have no names.")
    if names and len(names) != space.n:
        raise ValueError(
            f"{game} has {space.n} actions, and {len(names)} names: {', '.join(names)}."
        )
    numbers = range(int(space.start), int(space.start + space.n))
    return tuple(name.lower() for name in names) or tuple(map(str, numbers))


def _turn(text: str, reward: float = 0.0) -> Turn:
    return Turn((Message("user", text),), reward=reward)
