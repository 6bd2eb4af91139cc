"""Old against new rewards of stored rollouts: rewards, ranks, and counterfactual advantages. Pure.

The advantage is that of the run's estimator, over the batch in which a rollout was trained:

    sign changes    old and new advantage lie on different sides of 0: the update turns around
    spread          a group gains it if all old rewards were equal and the new are not

A rollout without a new reward has no new advantage, and the rest of its group is estimated
without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atroposlib.errors import ConfigError
from example_trainer.advantage.estimators import compute
from example_trainer.settings.loss import AdvantageSettings

EQUAL = 1e-9  # rewards and advantages that differ by less are equal


@dataclass
class Rescored:
    """A rollout with both rewards. Unknown is None."""

    gid: int
    row: int
    env: str | None
    item: str | None
    step: int | None  # step of the trainer; None: not trained on
    batch_no: int | None
    prompt_id: Hashable  # rows of a prompt share their baseline
    old: float | None
    new: float | None
    failure: str = ""  # kind of the failure of the new reward
    failure_text: str = ""
    n_trained: int | None = None
    finish_reason: str | None = None
    old_advantage: float | None = None
    new_advantage: float | None = None

    @property
    def has_both(self) -> bool:
        return self.old is not None and self.new is not None

    @property
    def turns_around(self) -> bool:
        """Whether the old and the new advantage have different signs."""
        if self.old_advantage is None or self.new_advantage is None:
            return False
        return sign(self.old_advantage) * sign(self.new_advantage) < 0


@dataclass(frozen=True)
class Figures:
    """Differences between the rewards of some rollouts; None where nothing can be compared."""

    n: int
    scored: int  # rollouts with both rewards
    old_mean: float | None
    new_mean: float | None
    old_std: float | None
    new_std: float | None
    correlation: float | None  # Pearson's, between both rewards
    pairs: int  # pairs of a group whose old or new rewards differ
    pairs_changed: int  # the order of a pair is another, or a tie
    advantages: int  # rollouts with both advantages
    turned: int  # sign of old and new advantage differs
    groups: int
    gain_spread: int
    lose_spread: int


@dataclass(frozen=True)
class Comparison:
    """Figures of all rollouts, and by environment and step."""

    total: Figures
    by_env: Mapping[str, Figures]
    by_step: Mapping[int, Figures]
    failures: Counter[str]
    failure_texts: Mapping[str, str]  # the first of each kind
    largest: Sequence[Rescored] = field(default_factory=list)

    @property
    def turned_steps(self) -> list[int]:
        """Steps with an advantage that changes its sign."""
        return [step for step, figures in self.by_step.items() if figures.turned]


def sign(value: float) -> int:
    return 0 if abs(value) <= EQUAL else int(math.copysign(1, value))


def add_advantages(rollouts: Sequence[Rescored], settings: AdvantageSettings) -> None:
    """Set both advantages of each trained rollout, by the estimator of ``settings``.

    Raises ConfigError: the settings do not fit the rewards.
    """
    for rows in rows_by(rollouts, lambda rollout: rollout.batch_no).values():
        if rows[0].batch_no is None:
            continue
        known = [row for row in rows if row.old is not None]
        for row, value in zip(known, advantages(known, "old", settings)):
            row.old_advantage = value
        known = [row for row in rows if row.new is not None]
        for row, value in zip(known, advantages(known, "new", settings)):
            row.new_advantage = value


def advantages(
    rows: Sequence[Rescored], reward: str, settings: AdvantageSettings
) -> list[float]:
    """Advantages of the rows of a batch by the rewards of the field ``reward``, (R,)."""
    if not rows:
        return []
    lengths = [row.n_trained for row in rows]
    return compute(
        [getattr(row, reward) for row in rows],
        [row.prompt_id for row in rows],
        settings,
        lengths=None if None in lengths else lengths,
        finish_reasons=[row.finish_reason for row in rows],
    )


def compare(rollouts: Sequence[Rescored], most: int) -> Comparison:
    """The comparison of rollouts with advantages; ``most`` of the largest disagreements.

    Raises ConfigError: there is no rollout.
    """
    if not rollouts:
        raise ConfigError("no rollout to rescore: the filters let none pass")
    by_env = rows_by(rollouts, lambda rollout: rollout.env or "")
    trained = [rollout for rollout in rollouts if rollout.step is not None]
    by_step = rows_by(trained, lambda rollout: rollout.step)
    failed = [rollout for rollout in rollouts if rollout.failure]
    both = [rollout for rollout in rollouts if rollout.has_both]
    return Comparison(
        total=reward_figures(rollouts),
        by_env={env: reward_figures(by_env[env]) for env in sorted(by_env)},
        by_step={step: reward_figures(by_step[step]) for step in sorted(by_step)},
        failures=Counter(rollout.failure for rollout in failed),
        failure_texts={row.failure: row.failure_text for row in reversed(failed)},
        largest=[row for row in sorted(both, key=_closeness) if _closeness(row)][:most],
    )


def reward_figures(rollouts: Sequence[Rescored]) -> Figures:
    both = [rollout for rollout in rollouts if rollout.has_both]
    old = np.array([rollout.old for rollout in both], dtype=float)
    new = np.array([rollout.new for rollout in both], dtype=float)
    groups = rows_by(both, lambda rollout: (rollout.batch_no, rollout.prompt_id))
    pairs = [_pairs(rows) for rows in groups.values()]
    spreads = [(_varies(rows, "old"), _varies(rows, "new")) for rows in groups.values()]
    compared = [row for row in both if None not in (row.old_advantage, row.new_advantage)]
    return Figures(
        n=len(rollouts),
        scored=len(both),
        old_mean=float(old.mean()) if both else None,
        new_mean=float(new.mean()) if both else None,
        old_std=float(old.std()) if both else None,
        new_std=float(new.std()) if both else None,
        correlation=correlation(old, new),
        pairs=sum(n for n, _ in pairs),
        pairs_changed=sum(changed for _, changed in pairs),
        advantages=len(compared),
        turned=sum(row.turns_around for row in compared),
        groups=len(groups),
        gain_spread=sum(now and not before for before, now in spreads),
        lose_spread=sum(before and not now for before, now in spreads),
    )


def correlation(old: Any, new: Any) -> float | None:
    """Pearson's correlation of two arrays; None where either is constant."""
    if len(old) < 2 or np.ptp(old) <= EQUAL or np.ptp(new) <= EQUAL:
        return None
    return float(np.corrcoef(old, new)[0, 1])


def rows_by(
    rows: Iterable[Rescored], key: Callable[[Rescored], Any]
) -> dict[Any, list[Rescored]]:
    """Rows by a key, in the order of their first."""
    groups: dict[Any, list[Rescored]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _pairs(rows: Sequence[Rescored]) -> tuple[int, int]:
    """Pairs of a group that differ in either reward, and pairs whose order changes."""
    first, second = np.triu_indices(len(rows), 1)
    orders = []
    for name in ("old", "new"):
        rewards = np.array([getattr(row, name) for row in rows], dtype=float)
        differences = rewards[first] - rewards[second]
        orders.append(np.where(np.abs(differences) <= EQUAL, 0, np.sign(differences)))
    old, new = orders
    return int(((old != 0) | (new != 0)).sum()), int((old != new).sum())


def _varies(rows: Sequence[Rescored], reward: str) -> bool:
    rewards = [getattr(row, reward) for row in rows]
    return bool(max(rewards) - min(rewards) > EQUAL)


def _closeness(row: Rescored) -> float:
    """Minus the difference of both rewards; 0.0 for equal rewards."""
    assert row.old is not None and row.new is not None
    difference = abs(row.old - row.new)
    return 0.0 if difference <= EQUAL else -difference
