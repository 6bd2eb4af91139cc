"""A tiny real model, a second one with other weights, and engines around them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine, PauseMode
from atroposlib.inference.engine.request import GenerationRequest, TokenEvent
from atroposlib.inference.engine.served_model import ServedModel, load_model
from atroposlib.testing.tiny import write_tiny_model
from tests.inference.helpers import WAIT_S
from tests.trainer.architectures import write
from tests.trainer.families import family_of


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("weights") / "first", seed=0)


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("weights") / "second", seed=1)


@pytest.fixture(scope="session")
def moe_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(family_of("mixtral"), tmp_path_factory.mktemp("weights") / "experts")


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> ServedModel:
    """The first weights, never touched by an engine."""
    return load_model(str(model_dir))


@pytest.fixture(scope="session")
def other_reference(other_dir: Path) -> ServedModel:
    return load_model(str(other_dir))


@pytest.fixture
def make_engine(model_dir: Path) -> Iterator[Callable[..., Engine]]:
    """Separate engines: a test may reload weights or pause."""
    started: list[Engine] = []

    def make(directory: Path = model_dir, **limits: int) -> Engine:
        served = load_model(str(directory), name="tiny")
        engine = Engine(served, EngineLimits(**limits), seed=0, num_threads=1)
        engine.start()
        started.append(engine)
        return engine

    yield make
    for engine in started:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine()


@pytest.fixture
def freeze_after() -> Callable[..., None]:
    """Run requests until the first has sampled some tokens, then pause in mode keep.

    The engine thread itself blocks in the request's event callback, so that the pause is
    in the inbox before the next step begins.
    """

    def run(engine: Engine, *requests: GenerationRequest, tokens: int) -> None:
        reached, go_on = threading.Event(), threading.Event()
        seen: list[TokenEvent] = []

        def on_event(event: TokenEvent) -> None:
            seen.append(event)
            if len(seen) == tokens * requests[0].n:
                reached.set()
                go_on.wait(WAIT_S)

        requests[0].on_event = on_event
        engine.pause(PauseMode.WAIT)  # so that all join in one step
        for request in requests:
            engine.submit(request)
        engine.resume()
        assert reached.wait(WAIT_S)
        with ThreadPoolExecutor(1) as pool:
            paused = pool.submit(engine.pause, PauseMode.KEEP)
            go_on_when(lambda: not engine._inbox.empty(), go_on)
            paused.result(WAIT_S)

    return run


def go_on_when(ready: Callable[[], bool], event: threading.Event) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready() and time.monotonic() < deadline:
        time.sleep(0)  # yields; the queue has no way to wait for a reader's view
    event.set()
