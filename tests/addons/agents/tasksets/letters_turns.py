"""A taskset of several turns: each reply is to be longer than the one before."""

import itertools

import verifiers.v1 as vf

__all__ = ["LettersTurnsEnv", "LettersTurnsTaskset"]


class LettersTurnsTask(vf.Task[vf.TaskData]):
    pass


class LettersTurnsTaskset(vf.Taskset[LettersTurnsTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count(1):
            yield LettersTurnsTask(vf.TaskData(prompt=f"Word {number}:"), self.config.task)


class LettersTurnsConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()


class LettersTurnsEnv(vf.Env[LettersTurnsConfig]):
    async def run(self, task, agents):
        lengths = []
        async with agents.writer.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                lengths.append(len(segment.last_reply))
                if len(lengths) == 3 or lengths != sorted(set(lengths)):
                    break
                segment = await interaction.turn("longer:")
        interaction.trace.record_reward("grew", float(lengths == sorted(set(lengths))))
        interaction.trace.record_reward("words", float(len(lengths)), 0.1)
