"""An environment of several turns, some of which begin a new context, and its rows."""

import random
import time

from rl_sync.environments.interface import ANEW, Message, Outcome, Turn


def rows(count=160):
    """Makes rows of questions."""
    return [{"prompt": f"{70 + i}-{i}=", "answer": "70"} for i in range(count)]


class Talker:
    """Answers each reply by its length, and begins a new context at every third turn.

    Args:
      turns: number of replies of an episode.
      whims: whether its turns after the first one are random, so that no episode is played again.
      secs: seconds of its work on each answer.
    """

    inline = True
    charset = "0123456789=-"

    def __init__(self, turns=5, whims=False, secs=0.0):
        self._turns, self._whims, self._secs = turns, whims, secs

    def reset(self, task, seed):
        self._random = random.Random() if self._whims else random.Random(seed)
        self._prompt, self._said = task["prompt"], []
        return Turn((Message("user", self._prompt),))

    def step(self, reply):
        time.sleep(self._secs)
        self._said.append(reply.text)
        if len(self._said) == self._turns:
            return Outcome({"length": sum(map(len, self._said)) / 10})
        answer = f"{self._random.randrange(10)}{len(reply.text)}="
        if len(self._said) % 3 == 0:
            return Turn((Message("user", self._prompt + answer),), after=ANEW)
        return Turn((Message("tool", answer),), reward=0.25)

    def close(self):
        pass


class Apart(Talker):
    """Plays in a process of its own."""

    inline = False
