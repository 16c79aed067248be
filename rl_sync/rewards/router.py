"""Reward models by name, and the router that sends each request to its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_sync.rewards.exact import ExactMatch
from rl_sync.rewards.final import FinalAnswer
from rl_sync.rewards.model import RewardModel
from rl_sync.spelling import require_one_of

REWARD_MODELS: dict[str, RewardModel] = {"exact": ExactMatch(), "final_answer": FinalAnswer()}


class RewardRequest(NamedTuple):
    """One completion to be judged, with the name of its reward model."""

    reward: str
    prompt: str
    completion: str
    answer: str


class RewardRouter:
    """Judges requests with the reward models that they name.

    Args:
      models: reward models by name; those of the package by default.
    """

    def __init__(self, models: Mapping[str, RewardModel] | None = None):
        self._models = REWARD_MODELS if models is None else models

    def judge(self, requests: Sequence[RewardRequest]) -> list[float]:
        """Returns rewards in the order of the requests.

        Raises:
          ValueError: an unknown reward model.
        """
        return [
            self.model(request.reward).score(request.prompt, request.completion, request.answer)
            for request in requests
        ]

    def model(self, name: str) -> RewardModel:
        """Returns the reward model of a name.

        Raises:
          ValueError: there is none; the message names the nearest.
        """
        require_one_of("reward", name, self._models)
        return self._models[name]
