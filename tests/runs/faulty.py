"""An environment that fails on some problems, each in its own way."""

import os
import time

from rl_sync.environments.interface import Message, Outcome, Turn


class Faulty:
    """Fails where the prompt's first operand ends in certain digits.

    Args:
      always: fails everywhere.
      by_seed: fails in half of the groups instead, whatever their prompts.
    """

    charset = "="

    def __init__(self, always=False, by_seed=False):
        self._always, self._by_seed = always, by_seed

    def reset(self, task, seed):
        self._fault = "1" if self._always else task["prompt"].split("+")[0].split("-")[0][-1]
        if self._by_seed:
            self._fault = "14"[seed // 2 % 2] if seed % 2 else ""
        return Turn((Message("user", task["prompt"]),))

    def step(self, reply):
        if self._fault == "1":
            raise ArithmeticError("the board is broken")
        if self._fault == "2":
            os._exit(9)
        if self._fault == "3":
            time.sleep(1000)
        if self._fault == "4":
            return {"rewards": "nonsense"}
        return Outcome({"parity": float(len(reply.text) % 2)})

    def close(self):
        pass
