"""Reward functions of completions, by name. A reward that fails raises an exception."""

from atroposlib.envs.reward_fns.combined_reward import CombinedReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction

__all__ = ["CombinedReward", "RewardFunction", "registry"]
