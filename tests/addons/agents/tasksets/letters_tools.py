"""A taskset with a tool: the answer is what the tool returns."""

import verifiers.v1 as vf

__all__ = ["LettersToolsTaskset"]


CALL = '<tool_call>{"name": "look", "arguments": {"place": "north"}}</tool_call>'


class PlaceData(vf.TaskData):
    answer: str = CALL


class Places(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    async def look(self, place: str) -> str:
        """Looks somewhere."""
        return f"a door in the {place}"


class LettersToolsTask(vf.Task[PlaceData]):
    @classmethod
    def toolsets(cls, config):
        return [Places(vf.ToolsetConfig())]

    @vf.reward
    async def looked(self, trace) -> float:
        return float("a door in the north" in str(trace.to_record()))


class LettersToolsTaskset(vf.Taskset[LettersToolsTask, vf.TasksetConfig]):
    def load(self):
        for number in range(64):
            yield LettersToolsTask(PlaceData(prompt=f"{number}: look north."), self.config.task)


if __name__ == "__main__":
    Places.run()
