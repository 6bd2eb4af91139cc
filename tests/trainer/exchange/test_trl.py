"""GRPOTrainer of the real TRL on the real rollout API and inference server."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev

import httpx
import pytest

from atroposlib.api.server import create_app as api_app
from atroposlib.errors import ConfigError
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app as inference_app
from tests.trainer.environment import running_environment

if find_spec("trl") is None and os.environ.get("ATROPOS_ADAPTER_TESTS") != "1":
    pytest.skip("the package trl is missing: extra trl-test", allow_module_level=True)

from example_trainer.exchange.trl import QueueTrainer, batch_sizes_of
from tests.trainer.exchange import trl_run

# TRL and transformers warn of what they will change themselves.
pytestmark = [pytest.mark.campaign, pytest.mark.filterwarnings("default")]
PACKAGE = "trl"
ROOT = Path(__file__).parents[3]
BOUND_S = 300


@pytest.fixture
def servers(serve, model_dir):
    """The URLs of a rollout API and an inference server."""
    engine = Engine(load_model(str(model_dir)), EngineLimits(), seed=0, num_threads=1)
    engine.start()
    yield serve(api_app()), serve(inference_app(engine))
    engine.close()


@pytest.fixture
def run(servers):
    """Both, with an environment that posts what a batch needs."""
    with running_environment(*servers):
        yield servers


def lines_of(out):
    path = out / "batches.jsonl"
    return (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )


def test_twenty_steps_use_the_recorded_logprobs_and_scores(run, model_dir, tmp_path):
    api, server = run
    trl_run.main(str(model_dir), str(tmp_path), api, server, "20")
    lines = lines_of(tmp_path)
    assert [line["batch_no"] for line in lines] == list(range(1, 21))
    for line in lines:
        assert line["old"] == [pytest.approx(row) for row in line["recorded"]]
        if line["fresh"]:  # then the importance weights are 1
            assert line["now"] == [pytest.approx(row, abs=1e-4) for row in line["recorded"]]
        for start in range(0, 8, 4):
            group = line["scores"][start : start + 4]
            scale = stdev(group) + 1e-4
            wanted = [(score - fmean(group)) / scale for score in group]
            assert line["advantages"][start : start + 4] == pytest.approx(wanted, abs=1e-3)
    assert lines[0]["fresh"]
    status = httpx.get(f"{api}/status").json()
    assert (status["batches_acked"], status["policy_version"]) == (20, 20)
    assert httpx.get(f"{server}/server_info").json()["weight_version"] == 20


def test_a_killed_trainer_goes_on_from_its_checkpoint_and_trains_no_batch_twice(
    run, model_dir, tmp_path
):
    command = [sys.executable, "-m", "tests.trainer.exchange.trl_run", str(model_dir)]
    command += [str(tmp_path), *run, "12"]
    first = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + BOUND_S
    while len(lines_of(tmp_path)) < 8:  # beyond the checkpoint of step 5
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = lines_of(tmp_path)
    subprocess.run(
        [*command, str(tmp_path / "checkpoint-5")], cwd=ROOT, check=True, timeout=BOUND_S
    )
    after = lines_of(tmp_path)[len(before) :]
    assert [line["batch_no"] for line in after] == list(range(6, 13))
    # The batches after the checkpoint come again as they were; nothing is new in them or left out.
    again = {line["batch_no"]: (line["keys"], line["scores"]) for line in before[5:]}
    assert all(
        again[line["batch_no"]] == (line["keys"], line["scores"])
        for line in after
        if line["batch_no"] in again
    )
    trained = [key for line in (*before[:5], *after) for key in line["keys"]]
    assert len(trained) == len(set(trained)) == 2 * 12
    assert httpx.get(f"{run[0]}/status").json()["batches_acked"] == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": -1}, "max_steps has to be a multiple of 1"),
        ({"num_iterations": 2, "save_steps": 3}, "save_steps has to be a multiple of 2"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "3 forward passes"),
        ({"use_vllm": True}, "use_vllm has to be False"),
    ],
)
def test_settings_that_do_not_fit_batches_are_refused_by_name(tmp_path, settings, message):
    args = trl_run.arguments(tmp_path, **{"steps": 4, **settings})
    with pytest.raises(ConfigError, match=message):
        batch_sizes_of(args)


def test_a_batch_serves_several_passes(run, model_dir, tmp_path):
    args = trl_run.arguments(tmp_path, 4, num_iterations=2, save_steps=2)
    settings = {"atropos_url": run[0], "inference_urls": [run[1]], "seq_len": 64}
    QueueTrainer(str(model_dir), args, settings=settings).train()
    status = httpx.get(f"{run[0]}/status").json()
    assert (status["batches_acked"], status["policy_version"]) == (2, 2)


def test_the_example_of_the_docs_joins_the_run_and_refuses_groups_of_another_size(
    servers, model_dir, tmp_path, monkeypatch
):
    words = ["trl_trainer.py", str(model_dir), str(tmp_path), *servers]
    monkeypatch.setattr(sys, "argv", words)
    refused = pytest.raises(ConfigError, match="make group_size and num_generations equal")
    with running_environment(*servers, ahead=8), refused:  # a batch of 8 groups
        runpy.run_path(str(ROOT / "docs/examples/trl_trainer.py"))
