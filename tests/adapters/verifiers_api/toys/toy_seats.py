"""An environment of verifiers 0.4 with two agents: one asks, and the other is trained."""

from __future__ import annotations

import verifiers.v1 as vf
from toy_sums import Sums, SumsConfig, SumTask

__all__ = ["Seats", "SeatsEnv"]


class Seats(Sums, vf.Taskset[SumTask, SumsConfig]):
    """The same sums."""


class SeatsConfig(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    solver: vf.AgentConfig = vf.AgentConfig()
    fails: bool = False
    attempts: int = 1


class SeatsEnv(vf.Env[SeatsConfig]):
    async def setup(self, agents):
        agents.asker.trainable = False

    async def run(self, task, agents):
        asked = await agents.asker.run(task.with_data(prompt="Ask for a sum."))
        for _ in range(self.config.attempts):
            await agents.solver.run(task.with_data(prompt=asked.last_reply))
        if self.config.fails:
            raise OSError("the board fell over")
