"""The promises of the rollout API, put to the test. See docs/reliability.md.

Quick sizes here; those marked `campaign` have their whole size.
"""

from __future__ import annotations

import pytest

from tests.torture.campaigns import CAMPAIGNS
from tests.torture.network.link import lacking
from tests.torture.queue.mutants import MUTANTS

pytestmark = pytest.mark.slow


@pytest.fixture
def torture(capsys):
    """Runs a campaign and shows its line, so that the log of CI holds the figures."""

    def run(name, whole=False):
        campaign = CAMPAIGNS[name]
        figures = campaign.run(campaign.whole if whole else campaign.quick, 0)
        with capsys.disabled():
            print(f"\n    {figures.line(name)}")
        return figures

    return run


def test_the_memory_store_equals_its_model_for_any_call_order(torture):
    torture("model-memory")


def test_the_sqlite_store_equals_its_model_under_calls_and_crashes(torture):
    assert torture("model-sqlite")["examples"] >= CAMPAIGNS["model-sqlite"].quick


def test_the_postgres_store_equals_its_model_under_calls_and_connection_losses(torture):
    assert torture("model-postgres")["examples"] >= CAMPAIGNS["model-postgres"].quick


@pytest.mark.campaign
def test_every_seeded_bug_is_detected(torture):
    assert torture("mutants", whole=True)["noticed"] == len(MUTANTS)


def test_power_cuts_break_no_guarantee(torture):
    torture("power")


def test_power_cuts_without_fsync_break_guarantees(torture):
    torture("power-without-fsync")


def test_no_flipped_bit_is_delivered(torture):
    torture("bit-rot")


def test_a_store_on_a_full_disk_keeps_its_groups_drains_and_recovers(torture):
    torture("full-disk")


@pytest.mark.campaign
@pytest.mark.skipif(bool(lacking()), reason=str(lacking()))
def test_a_network_that_is_cut_loses_and_doubles_nothing(torture):
    torture("cuts", whole=True)


@pytest.mark.alone
def test_a_healthy_run_has_no_finding(torture):
    assert torture("healthy")["diagnoses while it ran"] > 0


def test_no_seed_of_the_simulator_breaks_a_promise(torture):
    assert torture("simulator")["violations"] == 0


@pytest.mark.campaign
def test_the_simulator_finds_every_seeded_bug(torture):
    torture("simulator-mutants", whole=True)


def test_kill_9_of_the_api_loses_no_group_and_trains_no_group_twice(torture):
    torture("kills")


def test_kill_9_of_a_replica_or_of_its_database_loses_no_group(torture):
    torture("replica-kills")


def test_no_kill_of_any_process_trains_a_group_twice_or_needs_another_restart(torture):
    torture("mixed")


def test_no_hostile_request_is_answered_5xx(torture):
    torture("fuzz")


def test_no_operation_of_the_openapi_document_fails(torture):
    torture("schemathesis")


def test_decompression_bombs_are_rejected_with_little_memory(torture):
    torture("bombs")


def test_slow_readers_cost_little_memory_and_lose_no_groups(torture):
    torture("slow-readers")


def test_memory_and_disk_usage_stay_constant_in_a_long_run(torture):
    torture("soak")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name",
    [name for name, campaign in CAMPAIGNS.items() if 0 < campaign.quick < campaign.whole],
)
def test_no_promise_is_broken_at_the_whole_size(torture, name):
    torture(name, whole=True)
