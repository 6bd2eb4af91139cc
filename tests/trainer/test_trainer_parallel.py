"""Two processes give the step of one; what they keep goes from any number to any other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.distributed.ranks import RankLost, Ranks, start
from example_trainer.model import state_dict
from tests.trainer import two_ranks

ROOT = Path(__file__).parents[2]
BOUND_S = 60


@pytest.fixture(scope="module")
def ranks(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of one run of two_ranks.py found; this process is rank 0."""
    directory = tmp_path_factory.mktemp("ranks")
    shutil.copytree(model_dir, directory / "model")
    command = [sys.executable, "-W", "error", "-m", "tests.trainer.two_ranks"]
    other = subprocess.Popen([*command, "1", str(directory)], cwd=ROOT)
    try:
        two_ranks.main(0, directory)
        assert other.wait(BOUND_S) == 0
    finally:
        other.kill()
        other.wait()
    found = [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]
    found[0]["directory"] = directory
    return found


@pytest.mark.slow
def test_all_ranks_know_what_rank_0_shared_and_what_they_add_up_to(ranks):
    assert ranks[0]["values"] == ranks[1]["values"]
    assert ranks[0]["values"] == {"shared": {"a": [1, 2.5], "b": None}, "sum": [2.0, 1.0]}


@pytest.mark.slow
def test_two_ranks_have_the_gradient_of_one(ranks):
    assert ranks[0]["gradients"] == ranks[1]["gradients"]
    assert len(ranks[0]["gradients"]) == 4
    assert all(distance < 1e-5 for distance in ranks[0]["gradients"].values())


@pytest.mark.slow
def test_ranks_compute_in_bfloat16_and_add_up_in_float32(ranks):
    for found in ranks:
        assert found["low_precision"]["float32"]
        assert 1e-4 < found["low_precision"]["distance"] < 0.05


@pytest.mark.slow
def test_whole_weights_come_out_of_shards_and_go_back(ranks, policy):
    first, second = (found["weights"] for found in ranks)
    assert first["names"] == sorted(policy.model.state_dict()) and second["names"] == []
    assert first["tied"] and first["float32"] and first["stepped"] and second["stepped"]
    assert first["norm"] == second["norm"] > 0
    assert first["same on two"] and second["same on two"]
    assert first["on one"] < 1e-5
    assert 2 * first["shard"][0] - policy.parameters()[0].shape[0] in (0, 1)
    for found in (first, second):
        assert "not those of the model" in found["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", two_ranks.OPTIMIZERS)
def test_optimizer_state_goes_from_two_ranks_to_one_and_back(ranks, optimizer):
    found = ranks[0]["optimizers"][optimizer]
    assert found["two go on"] and found["taken over"] and found["handed back"]
    assert found["distance"] < 1e-5
    assert (
        found["entries"]
        == {
            "adamw": ["exp_avg", "exp_avg_sq", "step"],
            "adafactor": ["RMS", "exp_avg_sq", "exp_avg_sq_col", "exp_avg_sq_row"],
            "sgd": [],
        }[optimizer]
    )


@pytest.mark.slow
def test_state_of_another_optimizer_is_refused_on_every_rank(ranks):
    for found in ranks:
        assert "the saved state is of SGD" in found["optimizers"]["refused"]


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_on_one_rank_is_thrown_away_on_all(ranks):
    for found in ranks:
        assert found["not_finite"] == {"stepped": False, "nan": True, "unchanged": True}


@pytest.mark.slow
def test_an_adapter_trains_on_two_ranks_as_on_one(ranks, policy):
    first, second = (found["adapter_run"] for found in ranks)
    assert first["distance"] < 1e-5 < 1e-2 < first["moved"]
    assert first["trained"] == 2 * 2 * 2  # A and B of two modules in two layers
    assert first["names"] == sorted(policy.model.state_dict()) and second["names"] == []
    assert first["same again"] and second["same again"]
    assert "merged adapter" in first["refused"] and first["refused"] == second["refused"]
    saved = ranks[0]["directory"] / "adapter"
    assert sorted(p.name for p in saved.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_wait_of_the_others(ranks):
    assert ranks[1]["end"] == "ValueError: rank 1 gives up"
    told = ranks[0]["end"]
    assert told.startswith("RankLost: rank 0 of 2, waiting for a sum over all ranks:")


def test_a_rank_that_never_comes_is_named_as_lost(config, tmp_path, monkeypatch):
    monkeypatch.setattr("example_trainer.distributed.ranks.START_TIMEOUT_S", 0.2)
    cfg = config(world_size=2, init_method=f"file://{tmp_path}/meeting")
    with pytest.raises(RankLost, match="rank 0 of 2, waiting for all ranks at file://"):
        with start(cfg):
            pass


def test_one_rank_needs_no_process_group(config):
    with start(config()) as world:
        assert (world.rank, world.size, world.is_rank0) == (0, 1, True)
        assert not torch.distributed.is_initialized()
        assert world.share({"a": (1,)}) == {"a": (1,)}
        assert world.sum_(torch.ones(2)).tolist() == [1.0, 1.0]
        world.barrier()


def test_variables_of_torchrun_win_over_settings(config, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with start(config(trainer_rank=1, world_size=2)) as world:
        assert world == Ranks.single()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trainer_rank": 2, "world_size": 2}, "must be below world_size"),
        ({"world_size": 2}, "start with torchrun"),
        ({"cpu_offload": True}, "cpu_offload"),
    ],
)
def test_a_world_that_cannot_be_is_refused(config, monkeypatch, settings, told):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=told):
        with start(config(**settings)):
            pass


def test_whole_weights_of_one_rank_are_copies(policy):
    whole = state_dict.full_weights(policy)
    before = policy.logprobs_of([[5, 6, 7]])
    for tensor in whole.values():
        tensor.zero_()
    assert policy.logprobs_of([[5, 6, 7]]) == before
    state_dict.load_full_weights(policy, whole)
    assert not any(parameter.any() for parameter in policy.parameters())
