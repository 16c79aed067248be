"""A server of OpenEnv, with a game: say a word that is as long as the one before, plus one."""

import contextlib
import threading
import time

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


@contextlib.contextmanager
def serving():
    """Serves the game in a thread, as importing OpenEnv takes ten seconds, and yields its URL."""
    app = create_fastapi_app(Longer, Word, Told, max_concurrent_envs=32)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", ws="websockets")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not server.started:
            assert thread.is_alive(), "the server ended"
            assert time.monotonic() < deadline, "the server has not begun within 120 s"
            time.sleep(0.02)
        (port,) = {one.getsockname()[1] for of in server.servers for one in of.sockets}
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
