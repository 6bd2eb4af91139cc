"""Environments of the real package verifiers 0.2: rewards, failures, held-out data, signals."""

from __future__ import annotations

import signal

import pytest

from atroposlib.adapters import verifiers_v0 as adapter
from atroposlib.adapters.verifiers_v0 import VerifiersV0Config
from atroposlib.errors import ConfigError

PACKAGE = "verifiers"
SUMS = {"env_id": "toy-v0"}


@pytest.mark.slow
async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(sampled):
    groups = await sampled(adapter.verifiers_v0, max_tokens=4, **SUMS)
    source = groups[0]["metadata"]["source"]
    assert source["package"].startswith("verifiers 0.") and source["env_id"] == "toy-v0"


async def test_the_score_is_that_of_the_rubric_and_its_parts_are_logged(rollout):
    kwargs = {"count": 1}
    done = await rollout(adapter.verifiers_v0, lambda p, i: "1", env_kwargs=kwargs, **SUMS)
    assert done.reward.score == 1.5
    numbers = {"exact": 1.0, "short": 1.0, "turns": 1.0, "truncated": 0.0}
    assert numbers.items() <= done.reward.metrics.items()


@pytest.mark.parametrize(("scoring", "message"), [("raises", "scoring"), ("none", "NoneType")])
async def test_a_reward_that_fails_is_an_error_though_the_package_makes_it_0(
    failure, scoring, message
):
    given = {"env_kwargs": {"scoring": scoring}, **SUMS}
    assert message in await failure(adapter.verifiers_v0, lambda p, i: "1", **given)


async def test_a_server_that_fails_is_an_error(broken_server):
    await broken_server(adapter.verifiers_v0, **SUMS)


async def test_held_out_tasks_are_those_of_the_environment_if_it_has_some():
    config = VerifiersV0Config(**SUMS)
    assert len(await adapter.training(config)) == 4
    assert await adapter.held_out(config) is None
    config = VerifiersV0Config(env_kwargs={"held_out": True}, **SUMS)
    (task,) = await adapter.held_out(config)
    assert task["input"]["answer"] == "1" and "task" not in task["input"]


async def test_signals_keep_the_handlers_of_the_run():
    before = signal.getsignal(signal.SIGTERM)
    await adapter.training(VerifiersV0Config(**SUMS))
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": ""}, "name an environment"),
        ({"env_id": "no-such-env"}, "no-such-env"),
        ({**SUMS, "env_kwargs": {"scoring": "group"}}, "samples of a group"),
    ],
)
async def test_wrong_settings_end_the_run_before_a_rollout(settings, message):
    with pytest.raises(ConfigError, match=message):
        await adapter.training(VerifiersV0Config(**settings))
