"""The promises of the rollout API, put to the test. See docs/reliability.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.torture.campaign import Campaign
from tests.torture.figures import Figures


@pytest.fixture
def torture(capsys) -> Callable[..., Figures]:
    """Runs a campaign and shows its line, so that the log of CI holds the figures."""

    def run(campaigns: dict[str, Campaign], name: str, whole: bool = False) -> Figures:
        campaign = campaigns[name]
        figures = campaign.run(campaign.whole if whole else campaign.quick, 0)
        with capsys.disabled():
            print(f"\n    {figures.line(name)}")
        return figures

    return run
