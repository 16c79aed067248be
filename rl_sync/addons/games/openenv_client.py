"""Environments behind a server of OpenEnv; needs the package openenv."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_sync.addons.games.extras import require
from rl_sync.addons.games.speech import said
from rl_sync.environments.interface import Message, Outcome, Reply, Turn

_MODULE = "openenv.core.generic_client"
_TOLD = ("message", "text", "prompt", "output", "content", "echoed_message")
_NOT_TOLD = ("metadata", "reward", "done")


class OpenEnvClient:
    """A session at an OpenEnv server:
    `rl_sync.addons.games.openenv_client:OpenEnvClient(url=…)`.

    Each episode is a session of its own. `reset` gets the seed, and the fields of the row that
    `options` names. The first message is the row's `prompt`, if it has one, and the server's
    observation. A reply fills one field of an action. The rewards of steps are the rewards of
    turns; that of the last step is the outcome's.

    Args:
      url: the server's address, such as http://localhost:8000.
      action: field of an action that the reply's text fills.
      observation: field of an observation that the policy sees; if empty, the first text in a field
        with a usual name or, without one, the whole observation as JSON.
      options: names of fields of the row, separated by commas, that `reset` gets.
      limit_secs: maximum time for an answer of the server.
    """

    def __init__(
        self,
        url: str,
        action: str = "message",
        observation: str = "",
        options: str = "",
        limit_secs: float = 60.0,
    ) -> None:
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ValueError(f"url={url!r} must begin with http://, https://, ws:// or wss://.")
        self._url, self._action, self._observation = url, action, observation
        self._options = [name.strip() for name in options.split(",") if name.strip()]
        self._limit_secs = limit_secs
        self._session: Any = None

    @staticmethod
    def warm_up() -> None:
        """Imports the package, once for all workers.

        Raises:
          ValueError: it is not installed.
        """
        require(_MODULE, OpenEnvClient.__name__, extra="openenv")

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Opens a session and begins the episode.

        Raises:
          ValueError: the package is missing, or the row lacks an option. Connection errors
            are raised unchanged.
        """
        generic = require(_MODULE, OpenEnvClient.__name__, extra="openenv")
        lacking = [name for name in self._options if name not in task]
        if lacking:
            raise ValueError(f"The row has no field {lacking[0]!r}, which options asks for.")
        self._session = generic.GenericEnvClient(
            base_url=self._url, message_timeout_s=self._limit_secs
        ).sync()
        options = {name: task[name] for name in self._options}
        seen = self._session.reset(seed=seed, **options)
        prompt = str(task.get("prompt", ""))
        told = self._told(seen.observation)
        return Turn((Message("user", "\n\n".join(part for part in (prompt, told) if part)),))

    def step(self, reply: Reply) -> Turn | Outcome:
        """Sends the action that a reply fills."""
        seen = self._session.step({self._action: said(reply)})
        reward = float(seen.reward or 0.0)
        if seen.done:
            return Outcome({"reward": reward})
        return Turn((Message("user", self._told(seen.observation)),), reward=reward)

    def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            self._session.close()

    def _told(self, observation: Mapping[str, Any]) -> str:
        """Returns the text of an observation for the policy."""
        if self._observation:
            if self._observation not in observation:
                has = ", ".join(name for name in observation if name not in _NOT_TOLD) or "none"
                raise ValueError(
                    f"The observation has no field {self._observation!r}; it has {has}."
                )
            return str(observation[self._observation])
        for name in _TOLD:
            if isinstance(observation.get(name), str):
                return observation[name]
        shown = {name: of for name, of in observation.items() if name not in _NOT_TOLD}
        return json.dumps(shown, ensure_ascii=False, default=str)
