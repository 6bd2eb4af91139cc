"""The rewind of a real rollout API to the batch of the loaded weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atroposlib.errors import RunStateError
from example_trainer.checkpoint.rewinding import BEGIN, rewind


def test_weights_of_a_batch_that_the_api_does_not_know_are_refused_with_the_remedy(
    start, queued
):
    life = start()
    with pytest.raises(
        RunStateError, match="batch 99, which the rollout API does not"
    ) as error:
        rewind(life.client, replace(life.state, batch_no=99))
    assert BEGIN in str(error.value)
