"""Tests of the rendezvous of ranks: lost ranks, a single rank, torchrun variables."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.distributed.ranks import RankLost, Ranks, join_ranks


@pytest.mark.alone
def test_a_rank_that_fails_ends_the_wait_of_the_others(ranks):
    assert ranks[1]["end"] == "ValueError: rank 1 gives up"
    told = ranks[0]["end"]
    assert told.startswith("RankLost: rank 0 of 2, waiting for a sum over all ranks:")


def test_missing_rank_is_reported_as_lost(config, tmp_path, monkeypatch):
    monkeypatch.setattr("example_trainer.distributed.ranks.START_TIMEOUT_S", 0.2)
    cfg = config(world_size=2, init_method=f"file://{tmp_path}/meeting")
    with pytest.raises(RankLost, match="rank 0 of 2, waiting for all ranks at file://"):
        with join_ranks(cfg):
            pass


def test_one_rank_needs_no_process_group(config):
    with join_ranks(config()) as world:
        assert (world.rank, world.size, world.is_rank0) == (0, 1, True)
        assert not torch.distributed.is_initialized()
        assert world.share({"a": (1,)}) == {"a": (1,)}
        assert world.sum_(torch.ones(2)).tolist() == [1.0, 1.0]


def test_torchrun_variables_take_precedence_over_settings(config, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with join_ranks(config(trainer_rank=1, world_size=2)) as world:
        assert world == Ranks.single()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trainer_rank": 2, "world_size": 2}, "must be below world_size"),
        ({"world_size": 2}, "start with torchrun"),
        ({"cpu_offload": True}, "cpu_offload"),
        ({"tensor_parallel": 2}, "does not divide the 1 ranks"),
    ],
)
def test_impossible_ranks_are_refused(config, monkeypatch, settings, told):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=told):
        with join_ranks(config(**settings)):
            pass
