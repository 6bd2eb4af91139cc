"""A function is an environment: an async function, a data set, and nothing else.

    from atroposlib.envs import environment

    @environment(dataset=[{"id": "3+4", "ask": "What is 3 + 4?", "answer": "7"}])
    async def sums(task, model):
        return await model.chat(task["ask"]) == task["answer"]

    sums.cli()    # serve, process, evaluate

    env          the decorator and the class behind it      config    settings
    data         tasks in order, resumable                  model     what the function asks
    rewards      names, weights, a score or none            tools     Python functions as tools
    rollouts     one call of the function                   rows      its tokens, as groups
    evaluating   the same function over held-out tasks

``sums`` is a subclass of ``BaseEnv`` like any other; ``sums.rollout`` is the function itself.
docs/environments.md is the guide.
"""

from __future__ import annotations

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.env import FunctionEnv, environment
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.function_env.rollout_model import Model, Reply

__all__ = ["FunctionEnv", "FunctionEnvConfig", "Model", "Reply", "Reward", "environment"]
