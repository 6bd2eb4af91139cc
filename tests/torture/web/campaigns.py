"""Campaigns of hostile, slow and endless requests."""

from __future__ import annotations

from tests.torture.campaign import Campaign
from tests.torture.figures import in_own_process
from tests.torture.web.bombs import bomb_campaign
from tests.torture.web.fuzz import fuzz_campaign
from tests.torture.web.schema_fuzz import schema_campaign
from tests.torture.web.slow_readers import slow_reader_campaign
from tests.torture.web.soak import soak_campaign

CAMPAIGNS: dict[str, Campaign] = {
    "fuzz": Campaign(
        lambda n, seed: in_own_process(fuzz_campaign, n, seed),
        "requests",
        2_000,
        10_000,
        10**6,
    ),
    "schemathesis": Campaign(schema_campaign, "s", 5, 25, 900),
    "bombs": Campaign(lambda n, seed: bomb_campaign(), "times", 1, 1, 1),
    "slow-readers": Campaign(lambda n, seed: slow_reader_campaign(n), "s", 1, 5, 90),
    "soak": Campaign(
        lambda n, seed: in_own_process(soak_campaign, n, seed), "batches", 30, 120, 1_440
    ),
}
