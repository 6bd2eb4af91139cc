"""The real packages, the fake inference server, and a real one with a tiny model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.environments.conftest import evaluated, groups_made, make_env, trained_text
from tests.envs.function_env.function_toys import groups_in
from tests.serving import served

__all__ = ["evaluated", "groups_made", "make_env", "trained_text"]
REQUIRED = "ATROPOS_ADAPTER_TESTS"


@pytest.fixture(autouse=True)
def package(request):
    """Skip a test without the package of its module, or fail where they are required."""
    name = getattr(request.module, "PACKAGE", None)
    if name is not None and find_spec(name) is None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1 and no package {name}")
        pytest.skip(f"the package {name} is missing: make adapters")


@pytest.fixture(scope="session")
def local(tmp_path_factory) -> Iterator[str]:
    """URL of the local inference server with a tiny model of random weights."""
    pytest.importorskip("torch", reason="the local inference server needs torch")
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app
    from atroposlib.testing.tiny import write_tiny_model

    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory, max_positions=4096, alphabet=ASCII_ALPHABET)
    engine = Engine(
        load_model(str(directory), name="fake"), EngineLimits(), seed=0, num_threads=1
    )
    engine.start()
    with served(create_app(engine)) as url:
        yield url
    engine.close()


@pytest.fixture
def sampled(local, make_env, tmp_path):
    """Groups of four that the tiny model samples, with their logprobs and versions checked."""

    async def run(env_cls, **settings):
        (tmp_path / "groups.jsonl").unlink(missing_ok=True)
        once = {"group_size": 4, "total_steps": 1, "max_num_workers": 1}
        env = make_env(env_cls, local, **once, **settings)
        # Several groups of one item: a random role marker in a reply forks the conversation.
        assert await env.process_manager() >= 1
        groups = groups_in(tmp_path)
        assert any(label != -100 for label in groups[0]["masks"][0])
        for group in groups:
            assert len(group["tokens"]) == len(group["scores"]) == 4
            for labels, logprobs, versions in zip(
                group["masks"], group["inference_logprobs"], group["versions"]
            ):
                trained = [i for i, label in enumerate(labels) if label != -100]
                assert all(logprobs[i] < 0 and versions[i] == 0 for i in trained)
        return groups

    return run
