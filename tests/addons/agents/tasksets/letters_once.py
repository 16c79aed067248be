"""A taskset of one turn: the reply has as many letters as it is told."""

import verifiers.v1 as vf

__all__ = ["LettersOnceTaskset"]


class LettersOnceConfig(vf.TasksetConfig):
    tasks: int = 64
    fault: str = ""
    """Where it raises an error, or waits too long: `reward`, `setup`, `wait`."""


class LettersData(vf.TaskData):
    answer: str


class LettersOnceTask(vf.Task[LettersData]):
    async def setup(self, trace, runtime):
        if self.data.description == "setup":
            raise LookupError("no room was found")

    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        if self.data.description == "reward":
            raise LookupError("the judge is away")
        return float(len(trace.last_reply.strip()) == len(task.answer))

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply.strip()))


class LettersOnceTaskset(vf.Taskset[LettersOnceTask, LettersOnceConfig]):
    def load(self):
        for number in range(self.config.tasks):
            letters = 1 + number % 3
            timeout = vf.TaskTimeout(agent=0.001 if self.config.fault == "wait" else None)
            data = LettersData(
                prompt=f"{number}: write {letters} letters.",
                answer="x" * letters,
                description=self.config.fault,
                timeout=timeout,
            )
            yield LettersOnceTask(data, self.config.task)
