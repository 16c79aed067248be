"""An agent whose episodes exceed a limit of their own."""

from rl_sync.addons.agents.agent import Agent
from rl_sync.environments.interface import Outcome


class LateAgent(Agent):
    """Asks nothing, and says that a limit of its own was exceeded."""

    def _played(self, row, settings, variables):
        return Outcome({"right": 0.0}, reason="time-out", why="its judge took too long")
