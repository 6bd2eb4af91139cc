"""Old environments of many shapes run in the three commands; ``serve`` against ``run-api``."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import httpx
import pytest

from atroposlib.envs.cli import main
from tests.api.processes import serving
from tests.envs.old_style.more_shapes import MORE
from tests.envs.old_style.shapes import OLD_STYLE

pytestmark = pytest.mark.filterwarnings("ignore:inference on this machine")
WAIT_S = 60.0
RUN = {
    **{"wandb_group": "", "wandb_project": "", "batch_size": 4, "max_token_len": 512},
    **{"checkpoint_dir": "", "save_checkpoint_interval": 1, "starting_step": 0},
    "num_steps": 2,
}


@pytest.fixture(scope="module")
def run_api(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("queue")) as (_, url):
        yield url


class PollingTrainer(threading.Thread):
    """Registers, then polls /batch as the original's trainers do, until both batches came."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.batches: list[list[dict]] = []
        self._stop_polling = threading.Event()
        self._http = httpx.Client(base_url=url)
        self._http.get("/reset_data").raise_for_status()
        self._http.post("/register", json=RUN).raise_for_status()

    def run(self) -> None:
        with closing(self._http) as http:
            while len(self.batches) < 2 and not self._stop_polling.wait(0.02):
                if batch := http.get("/batch").raise_for_status().json()["batch"]:
                    self.batches.append(batch)
            http.get("/batch").raise_for_status()  # acks the last batch

    def end(self) -> None:
        self.join(10)
        self._stop_polling.set()
        self.join(WAIT_S)


def test_there_are_twenty_shapes_and_more():
    assert len(MORE) >= 20
    assert len({env_cls.name for env_cls in MORE + OLD_STYLE}) == len(MORE + OLD_STYLE)


@pytest.mark.parametrize("env_cls", MORE, ids=lambda env_cls: env_cls.name)
def test_process_and_evaluate(env_cls, words, tmp_path):
    path = tmp_path / "groups.jsonl"
    saved = ["--env.data_path_to_save_groups", str(path), "--env.total_steps", "3"]
    main(env_cls, ["process", *words, *saved])
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(groups) == 3
    for group in groups:
        assert len(group["tokens"]) == len(group["masks"]) == len(group["scores"]) == 2
        assert all(map(len, group["tokens"]))
    main(env_cls, ["evaluate", *words, "--env.data_dir_to_save_evals", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["results"]["all"] == {"eval/percent_correct": 0.5}


@pytest.mark.parametrize("env_cls", MORE, ids=lambda env_cls: env_cls.name)
def test_serve_fills_the_batches_of_a_polling_trainer(env_cls, words, run_api):
    trainer = PollingTrainer(run_api)
    trainer.start()
    try:
        where = ["--env.rollout_server_url", run_api, "--env.trainer_timeout_s", "20"]
        more = ["--env.total_steps", "2", "--env.ensure_scores_are_not_same", "false"]
        main(env_cls, ["serve", *words, *where, *more])
    finally:
        trainer.end()
    assert [sum(len(g["tokens"]) for g in batch) for batch in trainer.batches] == [4, 4]
