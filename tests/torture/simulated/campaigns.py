"""Campaigns of the simulator: seeds, and bugs that it has to notice."""

from __future__ import annotations

from tests.simulator.campaign import seed_campaign
from tests.simulator.mutants import SEEDS, mutant_campaign
from tests.torture.campaign import Campaign

CAMPAIGNS: dict[str, Campaign] = {
    "simulator": Campaign(seed_campaign, "seeds", 2, 10, 1_000),
    "simulator-mutants": Campaign(lambda n, _: mutant_campaign(n), "seeds", 0, SEEDS, SEEDS),
}
