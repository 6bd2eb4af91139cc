"""One run of a function environment's function: its session, its reward, its rows.

session on a server -> function(task, model) -> reward -> rows        training
                                             -> reward -> a sample    evaluation
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import TaskItem
from atroposlib.envs.function_env.evaluating import Result, Sample
from atroposlib.envs.function_env.model import Endpoint, Model, Reply
from atroposlib.envs.function_env.rewards import Reward, RewardPlan, call_user
from atroposlib.envs.function_env.rows import Rollout, metrics_of
from atroposlib.envs.rollout.groups import Node, from_node
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.errors import ConfigError, boundary

if TYPE_CHECKING:
    from atroposlib.generation.proxy.in_process import AgentSession, RunningProxy

TOOL_PARSER = "hermes"  # where neither flags nor YAML name one


class Rollouts:
    """Runs the function of one environment, any number of times at once."""

    def __init__(
        self,
        env: EnvRuntime,
        config: FunctionEnvConfig,
        function: Callable[..., Any],
        plan: RewardPlan,
    ) -> None:
        self._env = env
        self._config = config
        self._function = function
        self._plan = plan
        self._proxy: RunningProxy | None = None
        self._starting_proxy = asyncio.Lock()
        self._open_things = AsyncExitStack()

    async def train(self, item: TaskItem) -> Rollout | None:
        """One training rollout; None: it got no score.

        Raises:
            RolloutError: the function or a reward failed.
            ConfigError: the function never called the model.
        """
        env = self._env
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(
                env.server.managed_server(tokenizer=env.tokenizer)
            )
            endpoints: list[AgentSession] = []
            model = self._model(session, "train", stack, endpoints)
            reward = await self._play(item, model)
            if reward.score is None:
                return None
            rows = model.recorder.rows()
            nodes: list[Node] = [node for agent in endpoints for node in agent.rows()]
            params = {"temperature": model.temperature}
            rows += [from_node(node, 0.0, generation_params=params) for node in nodes]
        if not rows:
            raise ConfigError(
                f"{env.label()}: the rollout of item {item['id']} never called the model, so "
                "there is nothing to train on; return None for a task that is to be left out"
            )
        return Rollout(rows, reward)

    async def evaluate(self, item: TaskItem) -> Sample:
        """One rollout of a held-out item, within ``worker_timeout``.

        Raises:
            RolloutError: the function or a reward failed, or took too long.
        """
        timeout_s = self._config.worker_timeout
        with boundary(self._env.label(), item["id"], "evaluate"):
            return await asyncio.wait_for(
                self._evaluate(item), timeout_s if timeout_s > 0 else None
            )

    async def _evaluate(self, item: TaskItem) -> Sample:
        server = self._env.server
        async with AsyncExitStack() as stack:
            session: Any = server
            if all(one.returns_tokens for one in server.servers):
                # As in training: the same prompt to the token, and the same tool calls.
                session = await stack.enter_async_context(
                    server.managed_server(tokenizer=self._env.tokenizer)
                )
            model = self._model(session, "eval", stack, [])
            reward = await self._play(item, model)
        result = Result.UNSCORED if reward.score is None else Result.SCORED
        shown = shown_of(model.replies[-1]) if model.replies else {}
        return Sample(item, result, metrics_of(reward), shown)

    async def _play(self, item: TaskItem, model: Model) -> Reward:
        env, name, task = self._env.label(), item["id"], item["task"]
        with boundary(env, name, "rollout"):
            returned = await call_user(self._function, task, model, config=self._config)
        return await self._plan.judge(env, name, task, returned, self._config)

    def _model(
        self, session: Any, split: str, stack: AsyncExitStack, endpoints: list[AgentSession]
    ) -> Model:
        config = self._config
        temperature = config.temperature if split == "train" else config.eval_temperature

        async def open_endpoint() -> Endpoint:
            proxy = await self._running_proxy()
            opened = await proxy.open_session(
                self._env.server.tool_parser or TOOL_PARSER,
                split=split,
                # An agent that asks for greedy answers would leave nothing to compare.
                sampling={"temperature": temperature},
            )
            endpoints.append(await stack.enter_async_context(opened))
            return opened

        return Model(
            session,
            split=split,
            temperature=temperature,
            max_tokens=config.max_tokens,
            open_endpoint=open_endpoint,
        )

    async def _running_proxy(self) -> RunningProxy:
        """The proxy of this process, started by the first agent that asks for an address."""
        async with self._starting_proxy:
            if self._proxy is None:
                from atroposlib.generation.proxy.in_process import serving_proxy

                env = self._env
                self._proxy = await self._open_things.enter_async_context(
                    serving_proxy(
                        env.server, env.tokenizer, env.served_model_name() or "model"
                    )
                )
            return self._proxy

    async def close(self) -> None:
        """Stop the proxy, if it was started."""
        await self._open_things.aclose()


def shown_of(reply: Reply) -> dict[str, Any]:
    """What a reader of samples.jsonl wants to see of a rollout's last reply."""
    return {
        "prompt": reply.messages[:-1],
        "completion": str(reply),
        "finish_reason": reply.finish_reason,
    }
