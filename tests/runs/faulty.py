"""An environment that fails on some problems, each in its own way."""

import os
import time

from rl_sync.environments.interface import Message, Outcome, Turn


class Faulty:
    """Fails where the prompt's first operand ends in certain digits; `always` fails everywhere."""

    charset = "="

    def __init__(self, always=False):
        self._always = always

    def reset(self, task, seed):
        self._fault = "1" if self._always else task["prompt"].split("+")[0].split("-")[0][-1]
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
