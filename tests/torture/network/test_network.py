"""A network that is cut loses and doubles nothing."""

from __future__ import annotations

import pytest

from tests.torture.network.campaigns import CAMPAIGNS
from tests.torture.network.link import lacking

pytestmark = pytest.mark.slow


@pytest.mark.campaign
@pytest.mark.skipif(bool(lacking()), reason=str(lacking()))
def test_a_network_that_is_cut_loses_and_doubles_nothing(torture):
    torture(CAMPAIGNS, "cuts", whole=True)
