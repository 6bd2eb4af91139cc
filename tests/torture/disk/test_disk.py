"""Power cuts, flipped bits and full disks lose nothing that was acknowledged."""

from __future__ import annotations

import pytest

from tests.torture.campaign import whole_sizes
from tests.torture.disk.campaigns import CAMPAIGNS

pytestmark = pytest.mark.slow


def test_power_cuts_break_no_guarantee(torture):
    torture(CAMPAIGNS, "power")


def test_power_cuts_without_fsync_break_guarantees(torture):
    torture(CAMPAIGNS, "power-without-fsync")


def test_no_flipped_bit_is_delivered(torture):
    torture(CAMPAIGNS, "bit-rot")


def test_a_store_on_a_full_disk_keeps_its_groups_drains_and_recovers(torture):
    torture(CAMPAIGNS, "full-disk")


def test_a_backup_under_load_is_the_queue_at_one_point(torture):
    torture(CAMPAIGNS, "backup")


test_no_promise_is_broken_at_the_whole_size = whole_sizes(CAMPAIGNS)
