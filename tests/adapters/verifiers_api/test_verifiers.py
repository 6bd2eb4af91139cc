"""Task sets of the real package verifiers 0.4: rewards, agents, failures, endless ones, settings."""

from __future__ import annotations

from itertools import islice

import pytest

from atroposlib.adapters import verifiers as adapter
from atroposlib.adapters.verifiers import VerifiersConfig
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "verifiers"
SUMS = {"env_id": "toy_sums"}
ONE = {"taskset": {"count": 1}}


@pytest.mark.slow
async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(sampled):
    groups = await sampled(adapter.verifiers, max_tokens=4, **SUMS)
    source = groups[0]["metadata"]["source"]
    assert source["package"].startswith("verifiers 0.4.") and source["env_id"] == "toy_sums"
    assert source["task"].startswith("toy_sums/")


async def test_the_score_is_the_weighted_reward_and_prompts_are_those_of_the_task(group):
    left = iter(["1", "no"] * 4)
    made = await group(adapter.verifiers, lambda p, i: next(left), env_kwargs=ONE, **SUMS)
    assert sorted(made["scores"]) == [0.0, 2.0]
    assert "<|system|>Count.<|end|><|user|>0 + 1 =" in made["messages"][0][0]["content"]


async def test_rewards_metrics_and_turns_are_logged(rollout):
    done = await rollout(adapter.verifiers, lambda p, i: "no", **SUMS)
    numbers = {"exact": 0.0, "letters": 2.0, "turns": 1.0, "truncated": 0.0}
    assert done.reward.metrics == numbers


async def test_a_scoring_that_raises_is_an_error_and_never_0(failure):
    kwargs = {"taskset": {"task": {"scoring": "raises"}}}
    told = await failure(adapter.verifiers, lambda p, i: "1", env_kwargs=kwargs, **SUMS)
    assert "the answer of the scoring" in told


async def test_an_episode_that_fails_is_an_error_though_its_traces_are_whole(failure):
    given = {"env_id": "toy_seats", "env_kwargs": {"fails": True}}
    assert "the board fell over" in await failure(adapter.verifiers, lambda p, i: "1", **given)


async def test_several_rewards_of_one_agent_are_refused(failure):
    given = {"env_id": "toy_seats", "env_kwargs": {**ONE, "attempts": 2}}
    told = await failure(adapter.verifiers, lambda p, i: "1", **given)
    assert "agent solver ran 2 times in one episode" in told


async def test_a_server_that_fails_is_an_error(broken_server):
    await broken_server(adapter.verifiers, **SUMS)


async def test_of_two_agents_each_has_an_endpoint_and_one_is_trained(rollout):
    def reply(prompt, i):
        return "1" if "Please" in prompt else "Please"

    given = {"env_id": "toy_seats", "env_kwargs": ONE}
    done = await rollout(adapter.verifiers, reply, **given)
    assert set(done.seats) == {"solver"} and done.seats["solver"].rows
    assert done.reward.score == done.seats["solver"].score == 2.0
    assert done.reward.metrics["asker/exact"] == 0.0


async def test_an_endless_task_set_holds_out_its_first_tasks(group):
    endless = {**SUMS, "env_kwargs": {"taskset": {"endless": True}}}
    config = VerifiersConfig(eval_items=3, **endless)
    trained = [task["id"] for task in islice(adapter.training(config), 2)]
    assert trained == ["toy_sums/3", "toy_sums/4"]
    held_out = [task["id"] for task in adapter.held_out(config)]
    assert held_out == [f"toy_sums/{n}" for n in range(3)]
    made = await group(adapter.verifiers, lambda p, i: "33", **endless)
    assert made["scores"] == [2.0, 2.0]


def test_held_out_tasks_may_be_others_and_else_are_a_part():
    config = VerifiersConfig(eval_kwargs={"taskset": {"count": 2}}, **SUMS)
    assert len(adapter.training(config)) == 4 and len(adapter.held_out(config)) == 2
    assert adapter.held_out(VerifiersConfig(**SUMS)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": ""}, "name a task set"),
        ({"env_id": "no-such-set"}, "no-such-set"),
        ({**SUMS, "env_kwargs": {"taskset": {"sise": 3}}}, "sise"),
        ({**SUMS, "env_kwargs": {"taskset": {"count": 0}}}, "empty"),
    ],
)
def test_wrong_settings_end_the_run_before_a_rollout(settings, message):
    with pytest.raises(ConfigError, match=message):
        adapter.training(VerifiersConfig(**settings))


async def test_rollouts_leave_no_client_behind(make_env):
    with FakeInference(reply=lambda p, i: "1").running() as url:
        env = make_env(adapter.verifiers, url, **SUMS)
        await env.setup()
        assert env.rollouts.resources._interception is None  # each rollout has a server
        await env.close()
