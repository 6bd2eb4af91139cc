"""Exponential baselines of roles: a mean of the rewards of each role of an environment.

A group of two sides of a game has rewards of opposite signs; its mean is near 0 for both, so the
side that starts, and wins more, would be rewarded for its seat. With b the baseline of the row's
role and d ``role_decay``:

    A = r - b                              b from before the batch, so that it holds no reward of it
    b <- d b + (1 - d) (mean r of the role in the batch)

A role that is seen first has the mean of its first batch as b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from example_trainer.advantage.rewards import rows_by_group


class RoleBaselines:
    """The baselines of a run, which its checkpoints hold."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def take(
        self, roles_R: Sequence[str], rewards_R: Sequence[float], decay: float
    ) -> list[float]:
        """The baseline of each row of a batch, (R,); the batch then moves the baselines."""
        baselines_R = [0.0] * len(rewards_R)
        for role, rows in rows_by_group(roles_R).items():
            mean = math.fsum(rewards_R[row] for row in rows) / len(rows)
            before = self._means.get(str(role), mean)
            for row in rows:
                baselines_R[row] = before
            self._means[str(role)] = decay * before + (1 - decay) * mean
        return baselines_R

    def metrics(self) -> dict[str, float]:
        """Example: {"baseline/tic_tac_toe/X": 0.61}."""
        return {f"baseline/{role}": mean for role, mean in sorted(self._means.items())}

    def state(self) -> dict[str, float]:
        """JSON values, which hold every bit of a number."""
        return dict(self._means)

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from what :meth:`state` returned."""
        self._means = {role: float(mean) for role, mean in state.items()}
