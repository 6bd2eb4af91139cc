"""Function environments: samples, rewards and failures."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest
from pydantic import Field

from atroposlib.envs import BaseEnv, BaseEnvConfig, Reward, environment
from atroposlib.envs.cli import read_settings
from atroposlib.envs.runtime.process import OnlyFailures
from atroposlib.errors import AtroposError, ConfigError, RolloutError
from tests.envs.function_env.function_toys import (
    SUMS,
    groups_in,
    made,
    right_half_of_the_time,
    sums,
)


@pytest.fixture
def env_of(inference_url, tmp_path):
    return partial(made, url=inference_url, tmp_path=tmp_path)


def test_the_decorated_function_becomes_an_environment_class_of_the_same_name():
    assert issubclass(sums, BaseEnv)
    assert (sums.name, sums.__name__, sums.__doc__) == ("sums", "sums", "Small sums.")
    config, servers = sums.config_init()
    assert (config.group_size, config.max_tokens) == (2, 8)
    assert servers.base_url == "http://localhost:9001/v1"


async def test_groups_are_token_exact_scored_and_named(env_of, fake, tmp_path):
    fake.reply = right_half_of_the_time
    env = env_of(sums)
    assert await env.process_manager() == 3
    for group in groups_in(tmp_path):
        assert sorted(group["scores"]) == [0.0, 1.0]
        for tokens, labels, logprobs, score in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], group["scores"]
        ):
            a, b = group["metadata"]["item"].split("+")
            said = env.tokenizer.decode([label for label in labels if label != -100])
            assert said == (f"{int(a) + int(b)}" if score else "no") + "<|end|>"
            assert all((p == 1.0) == (label == -100) for p, label in zip(logprobs, labels))
        assert group["metadata"]["metrics"] == {"reward": 0.5}
        assert group["metadata"]["env"] == "sums"
        assert group["group_id"] == group["metadata"]["item"] + "@0"
        assert group["generation_params"] == {"temperature": 1.0}
    assert {body["max_tokens"] for _, body in fake.requests} == {8}


def test_new_settings_are_flags_and_existing_ones_have_other_defaults(tmp_path):
    @environment(
        SUMS, group_size=16, settings={"difficulty": Field(default=3, ge=1), "tag": None}
    )
    async def hard(task, model, config):
        return config.difficulty

    words = ["process", "--env.difficulty", "5", "--env.temperature", "0.7"]
    settings = read_settings(hard, [*words, "--openai.base_url", "http://localhost:1/v1"])
    assert (settings.env.difficulty, settings.env.group_size) == (5, 16)
    assert (settings.env.temperature, settings.env.tag) == (0.7, None)
    assert settings.servers.base_url == "http://localhost:1/v1"
    assert settings.servers.server_type == "vllm"
    with pytest.raises(ConfigError, match="difficulty should be at least 1"):
        read_settings(hard, ["process", "--env.difficulty", "0"])


def test_a_given_config_class_is_extended():
    class Hard(BaseEnvConfig):
        difficulty: int = 3
        group_size: int = 7

    @environment(SUMS, config=Hard, difficulty=4)
    async def hard(task, model):
        return 1.0

    config, _ = hard.config_init()
    assert isinstance(config, Hard)
    assert (config.difficulty, config.group_size, config.eval_samples) == (4, 7, 1)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"grop_size": 8}, r"sums: 'grop_size' is no setting, .*; did you mean group_size\?"),
        ({"group_size": 0}, "group_size should be at least 1"),
        ({"settings": {"seed": 1}}, "'seed' is a setting already"),
    ],
)
def test_an_invalid_decorator_argument_is_rejected_at_decoration(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        environment(SUMS, name="sums", **settings)(sums.rollout)


def test_only_an_async_function_of_task_and_model_is_accepted():
    with pytest.raises(ConfigError, match="write `async def plain"):

        @environment(SUMS)
        def plain(task, model):
            return 1.0

    with pytest.raises(ConfigError, match="takes .task, model."):

        @environment(SUMS)
        async def more(task, model, judge):
            return 1.0

    with pytest.raises(ConfigError, match="bare: write @environment.tasks."):

        @environment
        async def bare(task, model):
            return 1.0


async def test_the_decorated_function_can_be_called_directly():
    class Canned:
        async def chat(self, question):
            return "7"

    assert await sums.rollout({"a": 3, "b": 4}, Canned()) is True


# --- rewards ------------------------------------------------------------------------


async def test_named_rewards_are_weighted_and_each_is_logged(env_of, fake, tmp_path):
    @environment(SUMS, rewards={"exact": 1.0, "short": 0.5, "length": 0.0}, group_size=2)
    async def graded(task, model):
        answer = await model.chat(f"what is {task['a']} + {task['b']}?")
        right = answer == str(task["a"] + task["b"])
        return {"exact": right, "short": len(answer) < 2, "length": len(answer)}

    fake.reply = right_half_of_the_time
    path = tmp_path / "metrics.jsonl"
    env = env_of(graded, total_steps=2, metrics_path=str(path))
    await env.process_manager()
    for group in groups_in(tmp_path):
        assert sorted(group["scores"]) == [0.0, 1.5]
        assert group["metadata"]["metrics"] == {
            "exact": 0.5,
            "short": 0.5,
            "length": 1.5,
            "reward": 0.75,
        }
    logged = [json.loads(line) for line in path.read_text().splitlines()]
    assert logged[0]["train/exact"] == logged[0]["rollouts/exact"] == 0.5
    assert logged[0]["train/length"] == 1.5


async def test_weights_can_be_changed_by_a_flag(env_of, fake, tmp_path):
    async def exact(task, answer):
        return answer == str(task["a"] + task["b"])

    @environment(SUMS, rewards=[exact], group_size=2)
    async def judged(task, model):
        return await model.chat(f"what is {task['a']} + {task['b']}?")

    fake.reply = right_half_of_the_time
    env = env_of(judged, total_steps=1, reward_weights={"exact": 3.0})
    await env.process_manager()
    assert sorted(groups_in(tmp_path)[0]["scores"]) == [0.0, 3.0]
    with pytest.raises(ConfigError, match="no reward 'exat'"):
        env_of(judged, reward_weights={"exat": 3.0})


async def test_a_sample_without_a_score_is_drawn_again_and_not_scored_zero(
    env_of, fake, tmp_path
):
    drawn = Counter()

    @environment(SUMS, group_size=2, total_steps=4)
    async def unsure(task, model):
        await model.chat("hello")
        drawn[task["id"]] += 1
        return None if drawn[task["id"]] == 1 else 1.0 + drawn[task["id"]]

    env = env_of(unsure)
    assert await env.process_manager() == 4
    assert [sorted(group["scores"]) for group in groups_in(tmp_path)] == [[3.0, 4.0]] * 4
    assert set(drawn.values()) == {3}
    assert env._atropos.group_stats.samples == {"no_score": len(drawn)}


async def test_a_failing_rollout_or_reward_is_typed_and_drawn_again(env_of, fake, tmp_path):
    rollout_failures, reward_failures = [ValueError("rollout broke")], [KeyError("gold")]

    def judge(task, answer):
        if reward_failures:
            raise reward_failures.pop()
        return 1.0

    @environment(SUMS, rewards=[judge], group_size=2, total_steps=1, max_num_workers=1)
    async def fragile(task, model):
        if rollout_failures:
            raise rollout_failures.pop()
        return await model.chat("hello")

    env = env_of(fragile)
    assert await env.process_manager() == 1
    assert groups_in(tmp_path)[0]["scores"] == [1.0, 1.0]
    assert env._atropos.group_stats.samples == {"env_error": 1, "judge_error": 1}


async def test_a_run_of_failures_only_ends_with_an_error_naming_env_item_and_stage(env_of):
    @environment(SUMS, group_size=2, max_failures_in_a_row=2, max_num_workers=1)
    async def broken(task, model):
        raise ValueError("no gold answer")

    with pytest.raises(
        AtroposError,
        match=r"test_env.py:\d+: ValueError: no gold answer.*broken: rollout failed on item",
    ):
        await env_of(broken).process_manager()


async def test_a_function_that_makes_no_model_call_has_no_trainable_tokens(env_of):
    @environment(SUMS, group_size=2, max_failures_in_a_row=2, max_num_workers=1)
    async def silent(task, model):
        return 1.0

    with pytest.raises(AtroposError, match="never called the model"):
        await env_of(silent).process_manager()


def test_a_function_that_cannot_be_an_environment_ends_its_script_in_one_line(
    monkeypatch, capsys
):
    def not_async(task, model):
        return 1.0

    with pytest.raises(ConfigError, match="write `async def not_async"):
        environment(SUMS)(not_async)
    not_async.__module__ = "__main__"
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    with pytest.raises(SystemExit) as ended:
        environment(SUMS)(not_async)
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert re.match(r"error: .*test_env.py:\d+: not_async: write `async def not_async", line)


async def test_several_samples_of_one_call_are_rejected(env_of):
    @environment(SUMS, group_size=2, max_failures_in_a_row=1, max_num_workers=1)
    async def many(task, model):
        await model.chat("hello", n=4)

    with pytest.raises(OnlyFailures, match="group_size"):
        await env_of(many).process_manager()


# --- several turns ------------------------------------------------------------------


async def test_a_conversation_is_one_row_and_all_its_turns_are_trained(env_of, fake, tmp_path):
    @environment(SUMS, group_size=2, total_steps=1)
    async def twice(task, model):
        first = await model.chat([{"role": "user", "content": "hi"}], temperature=0.5)
        second = await model.chat(
            [*first.messages, {"role": "user", "content": "again"}], temperature=0.5
        )
        assert (first.finish_reason, second.message["role"]) == ("stop", "assistant")
        return Reward(float(len(model.replies)), {"turns": 2})

    fake.reply = lambda prompt, i: "two" if "again" in prompt else "one"
    env = env_of(twice, include_messages=True)
    await env.process_manager()
    (group,) = groups_in(tmp_path)
    assert group["scores"] == [2.0, 2.0]
    assert group["generation_params"] == {"temperature": 0.5}
    trained = [label for label in group["masks"][0] if label != -100]
    assert env.tokenizer.decode(trained) == "one<|end|>two<|end|>"
    roles = [message["role"] for message in group["messages"][0]]
    assert roles == ["user", "assistant", "user", "assistant"]


async def test_a_forked_rollout_produces_a_second_group_and_trains_no_token_twice(
    env_of, fake, tmp_path
):
    @environment(SUMS, group_size=2, total_steps=2, max_num_workers=1)
    async def forks(task, model):
        plan = await model.chat("plan")
        ways = [[*plan.messages, {"role": "user", "content": way}] for way in ("a", "b")]
        await asyncio.gather(*(model.chat(way) for way in ways))
        return 1.0

    fake.reply = lambda prompt, i: prompt.split("<|user|>")[-1][:1] + " done"
    env = env_of(forks)
    await env.process_manager()
    first, second = groups_in(tmp_path)
    assert (len(first["tokens"]), len(second["tokens"])) == (2, 2)
    for one, two in zip(first["masks"], second["masks"]):
        said = Counter(
            env.tokenizer.decode([label for label in labels if label != -100])
            for labels in (one, two)
        )
        assert sorted(said) in (
            ["a done<|end|>", "p done<|end|>b done<|end|>"],
            ["b done<|end|>", "p done<|end|>a done<|end|>"],
        )


async def test_completions_without_a_template_are_trained_too(env_of, fake, tmp_path):
    @environment(["3 + 4 ="], group_size=2, total_steps=1)
    async def continues(task, model):
        return float(await model.complete(task, max_tokens=2, stop=["?"]) == "7")

    fake.reply = lambda prompt, i: "7"
    env = env_of(continues)
    await env.process_manager()
    (group,) = groups_in(tmp_path)
    assert group["scores"] == [1.0, 1.0]
    assert env.tokenizer.decode(group["tokens"][0]) == "3 + 4 =7<|end|>"


# --- lifespan -----------------------------------------------------------------------


async def test_a_lifespan_is_entered_after_setup_and_left_in_close_by_one_task(env_of, fake):
    seen = []

    @asynccontextmanager
    async def pool(config):
        seen.append(asyncio.current_task())
        yield {"size": config.group_size}
        seen.append(asyncio.current_task())

    def sized(task, answer, resources):
        return resources["size"]

    @environment(SUMS, lifespan=pool, rewards=[sized], eval_items=1)
    async def pooled(task, model, resources):
        assert len(seen) == 1
        return f"{await model.chat('hello')} {resources['size']}"

    env = env_of(pooled, group_size=3)
    await asyncio.create_task(env.setup())  # as serve does
    (group,), _ = await env.collect_trajectories(await env.get_next_item())
    await env.evaluate()
    await env.close()
    assert group["scores"] == [3.0, 3.0, 3.0]
    assert seen[0] is seen[1] is not asyncio.current_task()


async def test_a_lifespan_that_fails_is_named(env_of, caplog):
    @asynccontextmanager
    async def entering():
        raise OSError("no browser")
        yield

    @asynccontextmanager
    async def leaving():
        yield
        raise OSError("still running")

    with pytest.raises(RolloutError, match="no browser.*sums: entering the lifespan failed"):
        await env_of(environment(SUMS, lifespan=entering, name="sums")(sums.rollout)).setup()
    env = env_of(environment(SUMS, lifespan=leaving, name="sums")(sums.rollout))
    await env.setup()
    await env.close()
    assert "still running" in caplog.text and "leaving the lifespan" in caplog.text


def test_resources_need_a_lifespan():
    with pytest.raises(ConfigError, match="resources.*give @environment a lifespan"):

        @environment(SUMS)
        async def pooled(task, model, resources):
            return 1.0


async def test_the_source_of_a_task_is_in_the_metadata_of_its_groups(env_of):
    source = {"package": "gymnasium 1.4.0", "seed": 3}

    @environment([{"id": "a", "source": source}], group_size=2)
    async def told(task, model):
        return float(len(await model.chat("hello")))

    env = env_of(told)
    await env.setup()
    (group,), _ = await env.collect_trajectories(await env.get_next_item())
    await env.close()
    assert group["metadata"]["source"] == source
