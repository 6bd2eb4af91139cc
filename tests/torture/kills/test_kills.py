"""Killed processes lose and double nothing, and a healthy run has no finding."""

from __future__ import annotations

import pytest

from tests.torture.campaign import whole_sizes
from tests.torture.kills.campaigns import CAMPAIGNS

pytestmark = pytest.mark.slow


@pytest.mark.alone
def test_a_healthy_run_has_no_finding(torture):
    assert torture(CAMPAIGNS, "healthy")["diagnoses while it ran"] > 0


def test_kill_9_of_the_api_loses_no_group_and_trains_no_group_twice(torture):
    torture(CAMPAIGNS, "kills")


def test_kill_9_of_a_replica_or_of_its_database_loses_no_group(torture):
    torture(CAMPAIGNS, "replica-kills")


def test_kill_9_of_an_environment_loses_no_finished_sample_and_skips_no_item(torture):
    torture(CAMPAIGNS, "journal")


def test_no_kill_of_any_process_trains_a_group_twice_or_needs_another_restart(torture):
    torture(CAMPAIGNS, "mixed")


test_no_promise_is_broken_at_the_whole_size = whole_sizes(CAMPAIGNS)
