"""Former names of settings, and the pauses while all rollouts fail."""

from __future__ import annotations

import logging

import pytest

from atroposlib.envs.settings.config import (
    FAILING_BACKOFF,
    NEW_NAMES,
    BaseEnvConfig,
    with_new_names,
)
from atroposlib.envs.settings.flags import read_flags


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(0, 0), (8, 0), (9, 0.2), (10, 0.4), (10_000, 10)]
)
def test_rollouts_pause_only_after_every_worker_failed_and_within_a_bound(failures, pause_s):
    workers = 8
    assert FAILING_BACKOFF.pause_s(failures - workers) == pytest.approx(pause_s)


@pytest.mark.parametrize(("old", "new"), NEW_NAMES.items())
def test_a_former_name_sets_and_reads_the_setting_and_is_logged_once(old, new, caplog):
    with caplog.at_level(logging.WARNING):
        config = BaseEnvConfig(**{old: 7.5})
    assert getattr(config, new) == getattr(config, old) == 7.5
    assert [record.message for record in caplog.records] == [
        f"setting {old} is deprecated: write {new}"
    ]
    setattr(config, old, 8.5)
    assert config.model_dump()[new] == 8.5
    assert old not in config.model_dump()


def test_a_former_name_is_a_flag():
    fields = {f"env.{name}": field for name, field in BaseEnvConfig.model_fields.items()}
    assert read_flags(["--env.trainer_wait", "5"], fields) == {"env.trainer_timeout_s": "5"}


def test_a_new_name_wins_over_a_former_one():
    assert with_new_names({"trainer_wait": 1, "trainer_timeout_s": 2}) == {
        "trainer_timeout_s": 2
    }


def test_a_name_that_was_never_a_setting_is_no_attribute():
    with pytest.raises(AttributeError, match="invented"):
        BaseEnvConfig().invented


def test_a_setting_that_a_subclass_does_not_declare_can_be_read_where_it_allows_any():
    class Open(BaseEnvConfig, extra="allow"):
        pass

    assert Open(anything=3).anything == 3
