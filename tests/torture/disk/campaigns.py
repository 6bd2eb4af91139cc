"""Campaigns over a failing disk: power cuts, flipped bits, no space."""

from __future__ import annotations

from tests.torture.campaign import Campaign
from tests.torture.disk.bit_rot import bit_rot_campaign
from tests.torture.disk.full_disk import full_disk_campaign
from tests.torture.disk.live_backup import backup_campaign
from tests.torture.disk.power_cuts import power_cut_campaign
from tests.torture.figures import Figures


def power_without_fsync(cuts: int, seed: int) -> Figures:
    """The control: if nothing breaks here, the cuts above prove nothing."""
    figures = power_cut_campaign(cuts, "NORMAL", seed)
    assert figures["with a broken promise"] > 0, figures.line("synchronous=NORMAL")
    return figures


CAMPAIGNS: dict[str, Campaign] = {
    "power": Campaign(
        lambda n, seed: power_cut_campaign(n, seed=seed), "cuts", 100, 700, 50_000
    ),
    "power-without-fsync": Campaign(power_without_fsync, "cuts", 50, 200, 2_000),
    "bit-rot": Campaign(bit_rot_campaign, "flips", 250, 1_000, 20_000),
    "backup": Campaign(backup_campaign, "groups", 2_000, 15_000, 100_000),
    "full-disk": Campaign(full_disk_campaign, "rounds", 1, 4, 100),
}
