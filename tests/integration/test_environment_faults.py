"""An environment process during outages of its peers and of itself.

Short outages here; `make torture TORTURE=environment` runs them at full length.
"""

from __future__ import annotations

import pytest

from tests.torture.kills.env_faults import Durations, environment_campaign

pytestmark = pytest.mark.slow


def test_an_environment_survives_every_outage_without_lost_or_repeated_groups(capsys) -> None:
    short = Durations(
        api_blip=0.5, api_away=2.0, api_503=3.0, api_absent=1.0, inference_away=2.0
    )
    figures = environment_campaign(1, short)
    with capsys.disabled():
        print(f"\n    {figures.line('environment')}")
    assert figures["groups finished"] > 0
