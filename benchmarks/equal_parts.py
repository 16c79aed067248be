"""A job whose rollouts, train steps and transfers take about equally long on two cores.

    python benchmarks/mode_pictures.py

The task is that of configs/tools.py, with a calculator that answers after a while, as a service
elsewhere does. So rollouts mostly wait, as those of agents do, and leave the cores to the trainer.
Four explorers generate; two processes train. `mode_pictures.py` puts each explorer behind a link
that takes as long for the weights.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rl_sync.configs import tools
from rl_sync.environments.environment_catalog import reference_of
from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.references import resolve

CALCULATOR: Any = resolve(reference_of("calculator"))


class WaitingCalculator:
    """The calculator, each of whose turns takes some time.

    Args:
      secs: seconds of a turn.
    """

    charset = CALCULATOR.charset

    def __init__(self, secs: float = 0.15) -> None:
        self._secs, self._calculator = secs, CALCULATOR()

    async def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Asks the problem of the row, after a while."""
        await asyncio.sleep(self._secs)
        turn: Turn = self._calculator.reset(task, seed)
        return turn

    async def step(self, reply: Reply) -> Turn | Outcome:
        """Answers, after a while."""
        await asyncio.sleep(self._secs)
        answer: Turn | Outcome = self._calculator.step(reply)
        return answer

    def close(self) -> None:
        """Does nothing."""


def get_config() -> ConfigDict:
    """Returns the settings of `configs/tools.py`, with this environment and division."""
    config = tools.get_config()
    config.name = "equal_parts"
    config.environment.name = f"{__file__}:WaitingCalculator"
    config.explorer.count = 4
    config.trainer.update({"steps": 20, "groups_per_step": 32, "group_size": 8, "processes": 2})
    config.trainer.mesh.data = 2
    config.sync.transfer = "server"
    config.optimizer.learning_rate = 2e-4
    config.evaluation.update({"every_steps": 0, "problems": 128})
    config.checkpoint.every_steps = 0
    return config
