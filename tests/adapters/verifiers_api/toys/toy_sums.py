"""A task set of verifiers 0.4: sums, endless or few, with a tool or a scoring that fails."""

from __future__ import annotations

import itertools

import verifiers.v1 as vf
from toy_adder import Adder

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: str


class SumTaskConfig(vf.TaskConfig):
    scoring: str = "right"
    tool: bool = False


class SumTask(vf.Task[SumData, vf.State, SumTaskConfig]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if self.config.scoring == "raises":
            raise KeyError("the answer of the scoring")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())] if config.tool else []


class SumsConfig(vf.TasksetConfig):
    endless: bool = False
    count: int = 4
    task: SumTaskConfig = SumTaskConfig()


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def __init__(self, config):
        super().__init__(config)
        self.INFINITE = config.endless

    def load(self):
        for n in itertools.count() if self.config.endless else range(self.config.count):
            data = SumData(prompt=f"{n} + 1 =", system_prompt="Count.", answer=str(n + 1))
            yield SumTask(data, self.config.task)
