"""Function environments: an async function and a data set.

``@environment(dataset)`` makes a subclass of ``BaseEnv``, whose ``rollout`` is the function.
Guide with examples: docs/environments.md.
"""

from __future__ import annotations

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.env import FunctionEnv, environment
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.function_env.rollout_model import Model, Reply

__all__ = ["FunctionEnv", "FunctionEnvConfig", "Model", "Reply", "Reward", "environment"]
