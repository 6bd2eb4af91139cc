"""Each store of the queue equals its model; seeded bugs are noticed."""

from __future__ import annotations

import pytest

from tests.torture.campaign import whole_sizes
from tests.torture.queue.campaigns import CAMPAIGNS
from tests.torture.queue.mutants import MUTANTS

pytestmark = pytest.mark.slow


def test_the_memory_store_equals_its_model_for_any_call_order(torture):
    torture(CAMPAIGNS, "model-memory")


def test_the_sqlite_store_equals_its_model_under_calls_and_crashes(torture):
    quick = CAMPAIGNS["model-sqlite"].quick
    assert torture(CAMPAIGNS, "model-sqlite")["examples"] >= quick


def test_the_postgres_store_equals_its_model_under_calls_and_connection_losses(torture):
    quick = CAMPAIGNS["model-postgres"].quick
    assert torture(CAMPAIGNS, "model-postgres")["examples"] >= quick


@pytest.mark.campaign
def test_every_seeded_bug_is_detected(torture):
    assert torture(CAMPAIGNS, "mutants", whole=True)["noticed"] == len(MUTANTS)


test_no_promise_is_broken_at_the_whole_size = whole_sizes(CAMPAIGNS)
