"""A server of OpenEnv, with a game: say a word that is as long as the one before, plus one."""

import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Word(Action):
    message: str


class Told(Observation):
    message: str
    seed: int = 0


class Longer(Environment):
    """Three right words win; each right word is worth ¼, the last one 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state, self._length, self._right = State(), 0, 0

    def reset(self, seed=None, episode_id=None, length=1, **_):
        self._length, self._right = int(length), 0
        return Told(message=f"Say a word of {self._length} letters.", seed=seed or 0)

    def step(self, action, timeout_s=None, **_):
        if len(action.message) != self._length:
            return Told(message="No.", done=True, reward=-1.0)
        self._length, self._right = self._length + 1, self._right + 1
        won = self._right == 3
        told = "You win." if won else f"Now {self._length} letters."
        return Told(message=told, done=won, reward=1.0 if won else 0.25)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Longer, Word, Told, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
