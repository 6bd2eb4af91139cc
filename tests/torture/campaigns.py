"""All campaigns by name, for `make torture`."""

from __future__ import annotations

from tests.torture.campaign import Campaign
from tests.torture.disk import campaigns as disk
from tests.torture.kills import campaigns as kills
from tests.torture.network import campaigns as network
from tests.torture.queue import campaigns as queue
from tests.torture.simulated import campaigns as simulated
from tests.torture.web import campaigns as web

CAMPAIGNS: dict[str, Campaign] = {
    **queue.CAMPAIGNS,
    **disk.CAMPAIGNS,
    **simulated.CAMPAIGNS,
    **kills.CAMPAIGNS,
    **network.CAMPAIGNS,
    **web.CAMPAIGNS,
}
