"""The real packages, the fake inference server, and a real one with a tiny model."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from tests.adapters.matrix.results import pytest_collection_finish, pytest_terminal_summary
from tests.environments.conftest import (
    evaluated,
    groups_made,
    make_env,
    tiny_server,
    trained_text,
)
from tests.envs.function_env.function_toys import groups_in

__all__ = ["evaluated", "groups_made", "make_env", "tiny_server", "trained_text"]
__all__ += ["pytest_collection_finish", "pytest_terminal_summary"]
REQUIRED = "ATROPOS_ADAPTER_TESTS"


@pytest.fixture(autouse=True, scope="module")  # before what a module starts
def package(request):
    require(getattr(request.module, "PACKAGE", None))


def require(name: str | None) -> None:
    """Skip a test whose package is missing, or fail where packages are required."""
    if name is not None and find_spec(name) is None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1 and no package {name}")
        pytest.skip(f"the package {name} is missing: make adapters")


@pytest.fixture
def sampled(tiny_server, make_env, tmp_path):
    """Groups of four that the tiny model samples, with their logprobs and versions checked."""

    async def run(env_cls, **settings):
        (tmp_path / "groups.jsonl").unlink(missing_ok=True)
        once = {"group_size": 4, "total_steps": 1, "max_num_workers": 1}
        env = make_env(env_cls, tiny_server[0], **once, **settings)
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
