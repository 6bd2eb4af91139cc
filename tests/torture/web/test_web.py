"""Hostile, slow and endless requests are answered, with little memory."""

from __future__ import annotations

import pytest

from tests.torture.campaign import whole_sizes
from tests.torture.web.campaigns import CAMPAIGNS

pytestmark = pytest.mark.slow


def test_no_hostile_request_is_answered_5xx(torture):
    torture(CAMPAIGNS, "fuzz")


def test_no_operation_of_the_openapi_document_fails(torture):
    torture(CAMPAIGNS, "schemathesis")


def test_decompression_bombs_are_rejected_with_little_memory(torture):
    torture(CAMPAIGNS, "bombs")


def test_slow_readers_cost_little_memory_and_lose_no_groups(torture):
    torture(CAMPAIGNS, "slow-readers")


def test_memory_and_disk_usage_stay_constant_in_a_long_run(torture):
    torture(CAMPAIGNS, "soak")


test_no_promise_is_broken_at_the_whole_size = whole_sizes(CAMPAIGNS)
