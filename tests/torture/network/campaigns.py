"""Campaigns over a network that is cut."""

from __future__ import annotations

from tests.torture.campaign import Campaign
from tests.torture.figures import Figures


def network_cuts(cut_s: int, seed: int) -> Figures:
    from tests.torture.network.cuts import cut_campaign  # imports torch

    return cut_campaign(cut_s)


CAMPAIGNS: dict[str, Campaign] = {
    "cuts": Campaign(network_cuts, "s", 0, 3, 600),
}
