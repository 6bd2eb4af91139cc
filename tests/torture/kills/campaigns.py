"""Campaigns over processes that are killed, and over healthy ones."""

from __future__ import annotations

from tests.torture.campaign import Campaign
from tests.torture.figures import Figures
from tests.torture.kills.env_faults import Durations, environment_campaign
from tests.torture.kills.killed_run import kill_campaign, replica_campaign


def environment_outages(rounds: int, seed: int) -> Figures:
    """CI runs the same with short outages: tests/integration/test_environment_faults.py."""
    return environment_campaign(rounds, Durations())


def trainer_kills(kills: int, seed: int) -> Figures:
    """CI kills once in each phase of a run: tests/trainer/checkpoint/test_recovery_killed.py."""
    from tests.torture.kills.killed_trainers import trainer_campaign  # imports torch

    return trainer_campaign(kills, seed)


def mixed_kills(kills: int, seed: int) -> Figures:
    from tests.torture.kills.killed_parts import mixed_campaign  # imports torch

    return mixed_campaign(kills, seed)


def healthy_runs(runs: int, seed: int) -> Figures:
    from tests.torture.kills.healthy_runs import healthy_campaign  # imports torch

    return healthy_campaign(runs, seed)


def sample_kills(kills: int, seed: int) -> Figures:
    from tests.torture.kills.killed_samples import sample_campaign  # imports torch

    return sample_campaign(kills, seed)


CAMPAIGNS: dict[str, Campaign] = {
    "kills": Campaign(kill_campaign, "kills", 3, 30, 1_000),
    "replica-kills": Campaign(replica_campaign, "kills", 3, 9, 200),
    "environment": Campaign(environment_outages, "rounds", 0, 0, 5),
    "journal": Campaign(sample_kills, "kills", 2, 12, 1_000),
    "trainer": Campaign(trainer_kills, "kills", 0, 0, 300),
    "mixed": Campaign(mixed_kills, "kills", 1, 3, 200),
    "healthy": Campaign(healthy_runs, "runs", 1, 1, 20),
}
