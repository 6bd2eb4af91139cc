"""A real rollout API on a free port, a fake inference server, and a small environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from atroposlib.client import RolloutClient
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.wire import Registration
from tests.envs.toys import ToyConfig
from tests.serving import served

NO_NAMES = {"wandb_group": "", "wandb_project": "", "checkpoint_dir": ""}


class RunningApi:
    """The rollout API in a thread; ``stop`` and ``start`` again keep port and data."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.url = ""
        self._trainers: list[RolloutClient] = []

    def start(self) -> None:
        from atroposlib.api.server import create_app
        from atroposlib.api.store import open_store

        app = create_app(open_store("sqlite", self.data_dir))
        self._serving = served(app, urlsplit(self.url).port or 0)
        self.url = self._serving.__enter__()

    def stop(self) -> None:
        self._serving.__exit__(None, None, None)

    def close(self) -> None:
        """Stop, and close the clients, so that a failed test leaks no socket into others."""
        for client in self._trainers:
            client.close()
        self.stop()

    def trainer(self, batch_size: int, num_steps: int, **more: object) -> RolloutClient:
        """A trainer that has registered and started the run by asking for a batch."""
        client = RolloutClient(self.url)
        self._trainers.append(client)
        client.register(
            Registration(
                batch_size=batch_size,
                save_checkpoint_interval=0,
                starting_step=0,
                num_steps=num_steps,
                **{**NO_NAMES, "max_token_len": 512, **more},
            )
        )
        client.claim(wait_s=0)
        return client


@pytest.fixture
def api(tmp_path: Path) -> Iterator[RunningApi]:
    running = RunningApi(tmp_path / "queue")
    running.start()
    yield running
    running.close()


@pytest.fixture
def fake() -> FakeInference:
    return FakeInference(reply=lambda prompt, i: f"answer {i}")


@pytest.fixture
def inference_url(fake: FakeInference) -> Iterator[str]:
    with fake.running() as url:
        yield f"{url}/v1"


@pytest.fixture
def toy_config(tmp_path: Path) -> ToyConfig:
    return ToyConfig(use_wandb=False, group_size=2, max_batches_offpolicy=1, total_steps=3)


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory to name as tokenizer: that of the fake inference server."""
    directory = tmp_path_factory.mktemp("tokenizer")
    char_tokenizer().save_pretrained(directory)
    return str(directory)
