"""Small rewards for tests of the base class, the registry and combinations."""

from __future__ import annotations

from atroposlib.envs.reward_fns import RewardFunction


class Length(RewardFunction):
    def compute(self, completions, **kwargs):
        return [len(text) or None for text in completions]


class Fixed(RewardFunction):
    """Returns the configured scores for any completion."""

    def compute(self, completions, **kwargs):
        return self.config["scores"]


class Log:
    def __init__(self):
        self.logged = []

    def log(self, metrics):
        self.logged.append(metrics)
