"""Old environments in whole runs: run-api as a process, a trainer that polls as the original's."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import closing

import httpx
import pytest

from atroposlib.testing.fake_inference import FakeInference
from tests.api.processes import serving
from tests.envs.old_style.shapes import OLD_STYLE, HooksEnv, StagedEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:inference on this machine"),
]
STEPS, BATCH, WAIT_S = 3, 4, 300.0
RUN = {
    **{"wandb_group": "", "wandb_project": "", "batch_size": BATCH, "max_token_len": 512},
    **{"checkpoint_dir": "", "save_checkpoint_interval": 1, "starting_step": 0},
    "num_steps": STEPS,
}


class OldTrainer(threading.Thread):
    """POST /register once, then GET /batch until the steps are done."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.batches: list[list[dict]] = []
        self._http = httpx.Client(base_url=url)
        self._http.post("/register", json=RUN).raise_for_status()

    def run(self) -> None:
        pause, end = threading.Event(), time.monotonic() + WAIT_S
        with closing(self._http):
            while len(self.batches) < STEPS and time.monotonic() < end:
                if batch := self._http.get("/batch").raise_for_status().json()["batch"]:
                    self.batches.append(batch)
                else:
                    pause.wait(0.02)
            # The original's trainer asks once more, which acks the last one.
            self._http.get("/batch").raise_for_status()


@pytest.fixture(scope="module")
def api_url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("queue")) as (_, url):
        yield url


@pytest.fixture
def trainer(api_url):
    httpx.get(f"{api_url}/reset_data").raise_for_status()
    trainer = OldTrainer(api_url)
    trainer.start()
    yield trainer
    trainer.join(WAIT_S)


@pytest.fixture
def fake():
    replies = iter(range(10**6))
    return FakeInference(reply=lambda prompt, i: "a" * (1 + next(replies) % 5))


@pytest.fixture
def cli_of(inference_url, tokenizer_dir, tmp_path, monkeypatch):
    """Run the file of an environment as ``python env.py MODE --config old.yaml``."""

    def run(env_cls, mode, **env):
        server = {"model_name": "m", "base_url": inference_url, "server_type": "vllm"}
        server |= {"health_check": False}
        env = {"tokenizer_name": tokenizer_dir, "total_steps": STEPS, **env}
        env |= {"trainer_timeout_s": WAIT_S}
        document = {"env": env, "openai": [server], "slurm": False, "testing": False}
        path = tmp_path / "old.yaml"
        path.write_text(json.dumps(document))  # JSON is YAML
        monkeypatch.setattr(sys, "argv", ["old_env.py", mode, "--config", str(path)])
        env_cls.cli()

    return run


@pytest.mark.parametrize("env_cls", OLD_STYLE)
def test_serve_feeds_an_old_trainer_by_run_api(env_cls, cli_of, api_url, trainer):
    cli_of(env_cls, "serve", rollout_server_url=api_url, ensure_scores_are_not_same=False)
    trainer.join(WAIT_S)
    assert len(trainer.batches) == STEPS
    for batch in trainer.batches:
        assert sum(len(group["tokens"]) for group in batch) == BATCH
        for group in batch:
            for tokens, masks in zip(group["tokens"], group["masks"]):
                assert all(label in (-100, token) for token, label in zip(tokens, masks))
    assert httpx.get(f"{api_url}/status").json()["batches_acked"] == STEPS


@pytest.mark.parametrize("env_cls", [HooksEnv, StagedEnv])
def test_process_and_evaluate_run_from_a_yaml_file(env_cls, cli_of, tmp_path):
    path = tmp_path / "groups.jsonl"
    cli_of(env_cls, "process", data_path_to_save_groups=str(path))
    assert len(path.read_text().splitlines()) == STEPS
    cli_of(env_cls, "evaluate", data_dir_to_save_evals=str(tmp_path))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["results"]["all"] == {"eval/percent_correct": 0.5}
