"""Tests of recovery with two ranks; each writes its shards, and rank 0 calls the API."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atroposlib.api.server import create_app
from atroposlib.client import RolloutClient
from example_trainer.model import loading
from example_trainer.update.optimizer import build_optimizer
from tests.serving import served
from tests.trainer.checkpoint import recovering_ranks
from tests.trainer.checkpoint.lives import recovery_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
BOUND_S = 600


@pytest.fixture(scope="module")
def api():
    with served(create_app()) as url:
        yield url


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovering")


@pytest.fixture(scope="module")
def ranks(model_dir: Path, directory: Path, api: str) -> list[dict[str, Any]]:
    shutil.copytree(model_dir, directory / "model")
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tests.trainer.checkpoint.recovering_ranks",
    ]
    other = subprocess.Popen([*command, "1", str(directory), api], cwd=ROOT)
    try:
        recovering_ranks.main(0, directory, api)
        assert other.wait(BOUND_S) == 0
    finally:
        other.kill()
        other.wait()
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_both_ranks_resume_with_their_own_random_state(ranks):
    for found in (rank["lives"] for rank in ranks):
        assert (found["begins"], found["first"], found["second"]) == (True, 0, 2)
        assert found["due"] and found["same logprobs"]
        assert found["drawn again"] == found["drawn"]
    assert ranks[0]["lives"]["drawn"] != ranks[1]["lives"]["drawn"]


def test_one_rank_resumes_the_checkpoint_of_two(ranks, directory, api):
    cfg = recovering_ranks.settings(0, directory)
    policy = loading.load_policy(cfg)
    with RolloutClient(api) as client:
        state = recovery_of(cfg).resume(client, policy, build_optimizer(policy, cfg))
    assert state.step == 2
    pairs = zip(policy.trained_logprobs(recovering_ranks.ROWS), ranks[0]["lives"]["logprobs"])
    assert all(ours == pytest.approx(theirs, abs=1e-5) for ours, theirs in pairs)


@pytest.mark.parametrize(("part", "written_by"), [("apart", 1), ("grown", 1), ("matrices", 2)])
def test_bits_survive_a_rank_without_the_disk_and_another_number_of_ranks(
    ranks, part, written_by
):
    for found in (rank[part] for rank in ranks):
        assert found["step"] == 1 and found["same"]
    names, files = ranks[0][part]["names"], ranks[0][part]["files"]
    assert any(name.endswith("/exp_avg") for name in names)
    assert len({name.split("-")[1] for name in files}) == written_by


def test_each_rank_writes_half_of_the_bytes(ranks, directory):
    paths = list((directory / "disk_of_0" / "recover" / "step_2").glob("*.safetensors"))
    sizes = [
        sum(path.stat().st_size for path in paths if f"-{rank:05d}-" in path.name)
        for rank in (0, 1)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_two_ranks_that_are_stopped_between_steps_go_on_from_the_last_one(ranks):
    assert [rank["stopped"] for rank in ranks] == [1, 1]


def test_a_disk_that_is_full_for_rank_1_ends_both_ranks_and_keeps_the_checkpoint_before(ranks):
    ours, theirs = (rank["full_disk"] for rank in ranks)
    assert ours["error"].startswith("CheckpointError: rank 1: [Errno 28] No space left")
    assert "rank 0 gave up: CheckpointError: rank 1" in theirs["error"]
    assert ours["step"] == theirs["step"] == 1


def test_rank_0_writes_and_evaluates_and_broadcasts_the_result(ranks, directory):
    assert not (directory / "disk_of_1").exists()
    assert (directory / "disk_of_0" / "step_2" / "model.safetensors").is_file()
    for rank in ranks:
        assert rank["lives"]["saved"]
        assert rank["lives"]["evaluated"] == {"eval/a": 0.5, "eval_failures": 0.0}


def test_failure_on_rank_0_ends_every_rank(ranks):
    assert ranks[0]["failures"][0].startswith("ConfigError: recover_mode resume found no")
    assert "rank 0 gave up: ConfigError: recover_mode resume" in ranks[1]["failures"][0]
    assert ranks[0]["failures"][1] == ranks[1]["failures"][1] == "SIGTERM"


def test_values_are_gathered_in_rank_order(ranks):
    expected = [{"rank": 0, "text": "x"}, {"rank": 1, "text": "x" * 10}]
    assert ranks[0]["values"] == ranks[1]["values"] == expected
