"""The simulator finds no broken promise, and every seeded bug."""

from __future__ import annotations

import pytest

from tests.simulator.mutants import MUTANTS, mutant_campaign
from tests.torture.simulated.campaigns import CAMPAIGNS

pytestmark = pytest.mark.slow


def test_no_seed_of_the_simulator_breaks_a_promise(torture):
    assert torture(CAMPAIGNS, "simulator")["violations"] == 0


@pytest.mark.campaign
def test_no_seed_of_many_breaks_a_promise(torture):
    assert torture(CAMPAIGNS, "simulator", whole=True)["violations"] == 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_finds_a_seeded_bug(name):
    mutant_campaign(at_once=1, names=(name,))
