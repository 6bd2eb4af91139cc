from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.routing.manager import ServerManager, backend_for
from atroposlib.testing.fake_inference import FakeInference

Connect = Callable[..., APIServer]
Manage = Callable[..., tuple[ServerManager, list[FakeInference]]]


@pytest.fixture
def fake() -> FakeInference:
    return FakeInference()


@pytest.fixture
def fake_url(fake: FakeInference) -> Iterator[str]:
    with fake.running() as root_url:
        yield root_url


@pytest.fixture
async def connect(fake_url: str, no_backoff: None) -> AsyncIterator[Connect]:
    """Builds clients of the fake and closes them."""
    opened: list[APIServer] = []

    def build(server_type: str = "openai", **settings: Any) -> APIServer:
        from atroposlib.generation.sampling.reasoning import ReasoningConfig

        reasoning = settings.pop("reasoning", ReasoningConfig())
        config = APIServerConfig(
            **{"base_url": f"{fake_url}/v1", "server_type": server_type, **settings}
        )
        opened.append(backend_for(server_type)(config, reasoning))
        return opened[-1]

    yield build
    for server in opened:
        await server.close()


@pytest.fixture
async def manage(no_backoff: None) -> AsyncIterator[Manage]:
    """Builds a manager over so many fakes, and closes all of it."""
    managers: list[ServerManager] = []
    with ExitStack() as stack:

        def build(
            count: int, server_type: str = "openai", *, manager: Any = (), **settings: Any
        ) -> tuple[ServerManager, list[FakeInference]]:
            fakes = [FakeInference() for _ in range(count)]
            configs = [
                APIServerConfig(
                    base_url=f"{stack.enter_context(fake.running())}/v1",
                    server_type=server_type,
                    **settings,
                )
                for fake in fakes
            ]
            managers.append(ServerManager(configs, **dict(manager)))
            return managers[-1], fakes

        yield build
        for made in managers:
            await made.close()


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses; the length of the pauses has separate tests."""
    from atroposlib.generation.engines import health
    from atroposlib.generation.sampling import resume
    from atroposlib.generation.sessions import remote
    from atroposlib.utils.backoff import Backoff

    for module in (health, remote):
        monkeypatch.setattr(module, "BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(health, "PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr(resume, "INITIAL_PAUSE_S", 0.0)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from atroposlib.testing.tiny import char_tokenizer

    return char_tokenizer()
