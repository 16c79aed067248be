"""An environment of some turns, for runs whose policy has learned nothing, and its rows."""

from rl_sync.environments.interface import Message, Outcome, Turn


def rows(count=160):
    """Makes rows with a field of their own, which differs from row to row."""
    return [{"prompt": f"{70 + i}-{i}=", "answer": "70", "kind": i} for i in range(count)]


class Parrot:
    """Answers with `=` until a reply ends in an even id's character, or for three turns.

    It says which kind of row it got, as a metric.
    """

    inline = True
    charset = "="

    def reset(self, task, seed):
        self._turns, self._kind = 0, task["kind"]
        return Turn((Message("user", task["prompt"]),))

    def step(self, reply):
        self._turns += 1
        if self._turns == 3 or len(reply.text) % 2 == 0:
            metrics = {"said": len(reply.text), "kind": self._kind}
            return Outcome({"parity": float(len(reply.text) % 2)}, metrics)
        return Turn((Message("tool", "="),), reward=0.25)

    def close(self):
        pass
