"""An environment of some turns, for runs whose policy has learned nothing."""

from rl_sync.environments.interface import Message, Outcome, Turn


class Parrot:
    """Answers with `=` until a reply ends in an even id's character, or for three turns."""

    inline = True
    charset = "="

    def reset(self, task, seed):
        self._turns = 0
        return Turn((Message("user", task["prompt"]),))

    def step(self, reply):
        self._turns += 1
        if self._turns == 3 or len(reply.text) % 2 == 0:
            return Outcome({"parity": float(len(reply.text) % 2)}, {"said": len(reply.text)})
        return Turn((Message("tool", "="),), reward=0.25)

    def close(self):
        pass
