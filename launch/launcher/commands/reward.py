"""`reward`: runs a reward server on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time

from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands.serving import end_asked, serving_place
from rl_sync.rewards.rubric import Rubric
from rl_sync.roles.assembly import wiring
from rl_sync.scoring.reward_server import RewardServer
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.settings.run_settings import RunSettings

_POLL_SECS = 0.2


def execute(arguments: Arguments) -> int:
    """Serves the reward of a config: see `serve`."""
    assert arguments.config is not None
    flags = arguments.flags
    return serve(
        arguments.config.to_dict(),
        flags.get("host"),
        flags.get("port", 0),
        secret_path=flags.get("secret-path"),
    )


def serve(config: ConfigValues, host: str | None, port: int, *, secret_path: str | None) -> int:
    """Serves the reward of a config until SIGTERM or Ctrl-C; returns the exit status.

    Args:
      host, port: the address on the command line.
      secret_path: the file of the secret; None for the config's file.

    Raises:
      ConfigError: the reward cannot be made, a worker cannot prepare it, the address cannot be
        used, or there is no secret.
    """
    # The server judges with its own workers, even if the config names reward servers.
    settings = read_settings({**config, "workdir": config.get("workdir") or ""})
    place = serving_place(host, port, secret_path or settings.reward.secret_path, kind="reward")
    reward = _reward(settings)
    own = dataclasses.replace(settings.reward, addresses=None)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    asked = end_asked()
    try:
        server = RewardServer(reward, own, host=place.host, port=place.port, secret=place.secret)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with contextlib.closing(server):
        print(f"Reward: {reward}")
        print(f"Workers: {settings.reward.workers}, secret: {place.path}", flush=True)
        _await_workers(server, settings.launch.start_secs, asked)
        if not asked.is_set():
            print(f"Serving at {server.address}; Ctrl-C ends it.", flush=True)
        asked.wait()
    print("The reward server has ended.")
    return 0


def _await_workers(server: RewardServer, start_secs: float, asked: threading.Event) -> None:
    deadline = time.monotonic() + start_secs
    try:
        while not (asked.is_set() or server.is_prepared(_POLL_SECS)):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"The workers have not prepared the reward in launch.start_secs={start_secs:g}"
                    " s: raise it if they have a large model to load."
                )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _reward(settings: RunSettings) -> str:
    """Returns the expression of the run's reward; loads the task only if the config names none."""
    reward = settings.task.reward
    if reward is None:
        task = wiring.load_task(settings)
        wiring.check_reward(task)
        for note in wiring.try_reward(settings, task):
            print(note, flush=True)
        return task.reward
    try:
        Rubric(reward).try_out([])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return reward
