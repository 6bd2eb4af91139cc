"""Task sets and environments of verifiers on the path, and their rollouts with given replies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atroposlib.errors import RolloutError
from atroposlib.testing.fake_inference import FakeInference

TOYS = Path(__file__).with_name("toys")
ONCE = {"group_size": 2, "max_num_workers": 1, "max_tokens": 60}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The modules of ``toys``; no key of a rollout is left in a variable."""
    monkeypatch.syspath_prepend(TOYS)
    monkeypatch.setenv("PYTHONPATH", str(TOYS))  # of servers of tools
    before = {name for name in os.environ if name.startswith("ATROPOS_API_KEY_")}
    yield
    assert before == {name for name in os.environ if name.startswith("ATROPOS_API_KEY_")}


@pytest.fixture
def group(make_env, groups_made):
    """The first group of an environment, with a model that gives some replies."""

    async def run(env_cls, reply, **settings):
        with FakeInference(reply=reply).running() as url:
            (made,) = await groups_made(make_env(env_cls, url, **{**ONCE, **settings}), 1)
        return made

    return run


@pytest.fixture
def rollout(make_env):
    """One rollout of the first task."""

    async def run(env_cls, reply, **settings):
        with FakeInference(reply=reply).running() as url:
            env = make_env(env_cls, url, **{**ONCE, **settings})
            await env.setup()
            try:
                return await env.rollouts.train(await env.get_next_item())
            finally:
                await env.close()

    return run


@pytest.fixture
def failure(rollout):
    """The error of one rollout."""

    async def run(env_cls, reply, **settings):
        with pytest.raises(RolloutError) as raised:
            await rollout(env_cls, reply, **settings)
        return str(raised.value)

    return run


@pytest.fixture
def broken_server(make_env):
    """The first rollout, by a server that refuses every call, is an error."""

    async def run(env_cls, **settings):
        fake = FakeInference()
        with fake.running() as url:
            env = make_env(env_cls, url, **settings)
            await env.setup()
            fake.fail_next.extend([400] * 9)
            with pytest.raises(RolloutError):
                await env.rollouts.train(await env.get_next_item())
            await env.close()

    return run
