"""Function environments: an async function and a data set.

    from atroposlib.envs import environment

    @environment(dataset=[{"id": "3+4", "ask": "What is 3 + 4?", "answer": "7"}])
    async def sums(task, model):
        return await model.chat(task["ask"]) == task["answer"]

    sums.cli()    # serve, process, evaluate

    env            the decorator and its class          config    settings
    data           tasks in order, resumable            tools     Python functions as tools
    rollout_model  the model of one rollout             recorder  sampled tokens as rows
    rewards        names, weights, score                rollouts  training and evaluation

``sums`` is a subclass of ``BaseEnv``; ``sums.rollout`` is the function itself. Guide:
docs/environments.md.
"""

from __future__ import annotations

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.env import FunctionEnv, environment
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.function_env.rollout_model import Model, Reply

__all__ = ["FunctionEnv", "FunctionEnvConfig", "Model", "Reply", "Reward", "environment"]
