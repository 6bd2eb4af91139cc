"""Settings with which no group would ever be trained are refused at the start."""

from __future__ import annotations

import pytest

from atroposlib.envs.runtime.startup import only_checks, require_trainable
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.utils.command.startup import CHECK_ONLY, FILLS_BATCHES_OF


def config(**settings):
    return BaseEnvConfig(tokenizer_name="none", **settings)


def test_a_group_of_one_is_refused_where_equal_scores_are_dropped():
    with pytest.raises(ConfigError, match="group_size 1.*ensure_scores_are_not_same"):
        require_trainable(config(group_size=1), {})
    require_trainable(config(group_size=1, ensure_scores_are_not_same=False), {})


@pytest.mark.parametrize(
    ("size", "batch", "fits"), [(4, 6, False), (4, 8, True), (8, 4, False)]
)
def test_a_batch_that_its_groups_cannot_make_is_refused_by_the_environment_that_is_alone(
    size, batch, fits
):
    require_trainable(config(group_size=size), {})  # other environments may fill the gap
    if fits:
        require_trainable(config(group_size=size), {FILLS_BATCHES_OF: str(batch)})
        return
    with pytest.raises(ConfigError, match=f"group_size {size}.*batch of {batch} sequences"):
        require_trainable(config(group_size=size), {FILLS_BATCHES_OF: str(batch)})


def test_a_process_is_for_its_check_alone_only_by_the_variable():
    assert only_checks({CHECK_ONLY: "1"}) and not only_checks({})
