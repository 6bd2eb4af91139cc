"""Rewards -> advantages, normalised within the group that answers one prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Below this a group's rewards are equal but for rounding; dividing by less would blow
# rounding errors up to advantages.
STD_FLOOR = 1e-8


def compute(rewards_R: Sequence[float], group_ids_R: Sequence[str]) -> list[float]:
    """GRPO: (reward - group mean) / max(population std of the group, 1e-8), arXiv 2402.03300.

    Rows of a group are found by id, wherever they stand in the batch. A group of one has
    no baseline: its advantage is the raw reward.
    """
    members: dict[str, list[float]] = {}
    for reward, group in zip(rewards_R, group_ids_R):
        members.setdefault(group, []).append(reward)
    moments = {group: _moments(rewards) for group, rewards in members.items()}
    return [
        (
            reward
            if len(members[group]) == 1
            else (reward - moments[group][0]) / max(moments[group][1], STD_FLOOR)
        )
        for reward, group in zip(rewards_R, group_ids_R)
    ]


def _moments(rewards_G: Sequence[float]) -> tuple[float, float]:
    if min(rewards_G) == max(rewards_G):
        return rewards_G[0], 0.0  # exactly: a mean of equal floats can miss them by rounding
    mean = math.fsum(rewards_G) / len(rewards_G)
    variance = math.fsum((r - mean) ** 2 for r in rewards_G) / len(rewards_G)
    return mean, math.sqrt(variance)
