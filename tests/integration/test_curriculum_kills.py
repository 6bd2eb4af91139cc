"""kill -9 of an environment whose tasks a sampler chooses: the sequence of tasks is unchanged.

One rollout at a time, so that there is one sequence; with several, observations and draws
interleave by their durations, with and without a kill.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

import pytest

from atroposlib.client import RolloutClient
from atroposlib.envs.curriculum.interface import ObservedGroup, TaskRows
from atroposlib.envs.curriculum.pools import DifficultyPools
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import Registration
from tests.integration.pooled_env import TASKS
from tests.torture.figures import fast_folder
from tests.torture.kills.api_process import ApiProcess
from tests.torture.kills.env_world import Process, until

pytestmark = pytest.mark.slow
KILLS, GROUPS, SEED, GROUP = 3, 30, 3, 4
POOLS = {"half_life": 1e9, "explore": 0.2}  # trainer steps do not matter


class PlacesTrainer(threading.Thread):
    """Claims groups, notes the ids of all, ``task@place``, and acks."""

    def __init__(self, url: str, checkpoints: Path) -> None:
        super().__init__(name="trainer", daemon=True)
        self.names: list[str] = []
        self.stop = threading.Event()
        self.client = RolloutClient(url, on_wait=lambda why: None)
        registration = Registration(
            wandb_group="",
            wandb_project="",
            batch_size=GROUP,
            max_token_len=64,
            checkpoint_dir=str(checkpoints),
            save_checkpoint_interval=0,
            starting_step=0,
            num_steps=10**6,
        )
        self.client.register(registration)

    def run(self) -> None:
        while not self.stop.is_set():
            claimed = self.client.claim(wait_s=0.5)
            if claimed.batch is not None:
                self.names += [str(group.group_id) for group in claimed.batch]
                self.client.ack(claimed)


def undisturbed(count: int) -> list[str]:
    """Tasks by place, one after another, of the sampler alone."""
    sampler = DifficultyPools(TaskRows(TASKS, range(len(TASKS))), seed=SEED, **POOLS)
    names = []
    for place in range(count):
        task = sampler.draw()
        assert task is not None
        names.append(f"{task.content['id']}@{place}")
        success = task.content["success"]
        sampler.observe(ObservedGroup(task, (success,) * GROUP, success))
    return names


def environment(folder: Path, port: int, inference: str) -> Process:
    model = str(write_tiny_model(folder / "model"))
    curriculum = (
        f'{{"sampler": {{"name": "pools", "half_life": 1e9, "explore": {POOLS["explore"]}}}}}'
    )
    flags = {
        "env.curriculum": curriculum,
        "env.seed": str(SEED),
        "env.rollout_server_url": f"http://127.0.0.1:{port}",
        "env.tokenizer_name": model,
        "env.group_size": str(GROUP),
        "env.max_num_workers": "1",
        "env.max_token_length": "64",
        "env.max_batches_offpolicy": "8",
        "env.total_steps": str(10**6),
        "env.ensure_scores_are_not_same": "false",
        "env.use_wandb": "false",
        "env.steps_per_eval": "0",
        "openai.base_url": f"{inference}/v1",
        "openai.model_name": "fake",
        "openai.server_type": "vllm",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    module = "tests.integration.pooled_env"
    return Process(folder / "env.log", sys.executable, "-m", module, "serve", *words)


def test_kill_9_of_an_environment_changes_no_task_of_its_sampler() -> None:
    rng = random.Random(SEED)
    with fast_folder() as folder, FakeInference().running() as inference:
        api = ApiProcess(folder)
        api.start()
        (folder / "checkpoints").mkdir()
        trainer = PlacesTrainer(f"http://127.0.0.1:{api.port}", folder / "checkpoints")
        trainer.start()
        env = environment(folder, api.port, inference)
        try:
            env.start()
            for _ in range(KILLS):
                had = len(trainer.names)
                until(f"a group; see {folder}", lambda had=had: len(trainer.names) > had, 120)
                time.sleep(rng.uniform(0.0, 0.3))
                env.kill()
                env.start()
            until(f"{GROUPS} groups", lambda: len(trainer.names) >= GROUPS, 240)
        finally:
            env.kill()
            trainer.stop.set()
            trainer.join(10)
            trainer.client.close()
            api.kill()
    assert len(trainer.names) == len(set(trainer.names))
    by_place = sorted(trainer.names, key=lambda name: int(name.partition("@")[2]))
    assert by_place == undisturbed(len(by_place))
