"""A small environment over the fake inference server; tests script its failures."""

from __future__ import annotations

import asyncio
from collections import deque

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.testing.tiny import char_tokenizer
from tests.serving import WAIT_S


class ToyConfig(BaseEnvConfig):
    items: int = Field(default=10_000, description="how many items there are")


class ToyEnv(BaseEnv):
    """Groups of ``group_size`` answers; the first scores 0, the second 1 and so on."""

    name = "toy"
    env_config_cls = ToyConfig

    def __init__(self, config, server_configs, slurm=False, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.tokenizer = char_tokenizer()
        self.iter = 0
        self.failures = deque()  # exceptions to raise in the next rollouts
        self.rolled_out = []  # items in the order of their start
        self.evaluated_at = []
        self.gate = None  # an asyncio.Event that rollouts wait for
        self.same_scores = False

    async def setup(self):
        pass

    async def get_next_item(self):
        if self.iter >= self.config.items:
            return None
        self.iter += 1
        return {"id": f"item-{self.iter}"}

    async def collect_trajectories(self, item):
        self.rolled_out.append(item["id"])
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.popleft()
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}],
                n=self.config.group_size,
                max_tokens=20,
                temperature=1.0,
            )
            nodes = managed.nodes_for(completion)
        scores = [0.0 if self.same_scores else float(i) for i in range(len(nodes))]
        return from_nodes(nodes, scores, metrics={"exact": 0.5}), []

    async def evaluate(self, *args, **kwargs):
        self.evaluated_at.append(self._atropos.measured_at())
        await self.evaluate_log({"exact": 0.25}, samples=[{"prompt": "p", "reward": 1.0}])


def toy_env(config: ToyConfig, url: str, **changes) -> ToyEnv:
    server = APIServerConfig(base_url=url, server_type="vllm", model_name="fake")
    return ToyEnv(config.model_copy(update=changes), [server])


async def eventually(condition, bound_s: float = WAIT_S) -> None:
    """Wait until ``condition()`` holds; fails after ``bound_s`` seconds."""

    async def poll():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), bound_s)
