"""A function environment measured, served to a trainer, and restarted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial

import pytest

from atroposlib.envs import environment
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.function_env.rollouts import (
    EvalSample,
    Result,
    errors_of_means,
    evaluation_metrics,
)
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.errors import ConfigError, RolloutError
from tests.envs.function_env.function_toys import SUMS, made, right_half_of_the_time, sums
from tests.envs.runtime.test_serve import train


@pytest.fixture
def env_of(inference_url, tmp_path):
    return partial(made, url=inference_url, tmp_path=tmp_path)


# --- evaluation ---------------------------------------------------------------------


async def evaluated(env, tmp_path):
    env.config.data_dir_to_save_evals = str(tmp_path / "evals")
    await env.setup()
    await env.evaluate()
    await env.close()
    samples = (tmp_path / "evals" / "samples.jsonl").read_text().splitlines()
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())
    return metrics["results"]["all"], [json.loads(line) for line in samples]


async def test_evaluation_runs_the_function_on_the_held_out_tasks(env_of, fake, tmp_path):
    fake.reply = lambda prompt, i: "5"
    env = env_of(sums, eval_fraction=0.5)
    metrics, samples = await evaluated(env, tmp_path)
    held_out = {item["id"] for item in env.held_out}
    fives = [name for name in held_out if eval(name) == 5]
    assert {sample["id"] for sample in samples} == held_out
    assert metrics["reward"] == pytest.approx(len(fives) / len(held_out))
    assert (metrics["items"], metrics["failed"]) == (len(held_out), 0)
    assert samples[0]["completion"] == "5"
    written = (tmp_path / "evals" / "transcripts.jsonl").read_text().splitlines()
    group = json.loads(written[0])
    assert group["messages"][0][-1] == {"role": "assistant", "content": "5"}
    assert group["metadata"]["item"] in held_out and len(group["tokens"][0]) > 0
    assert {body["temperature"] for _, body in fake.requests} == {0.0}


async def test_failed_and_unscored_samples_are_counted_separately_from_the_mean(
    env_of, tmp_path
):
    asked = Counter()

    @environment([], eval_dataset=["good", "good", "fails", "unsure", "flaky"])
    async def mixed(task, model):
        assert model.split == "eval"
        asked[task] += 1
        if task == "fails" or (task == "flaky" and asked[task] == 1):
            raise ValueError("server went away")
        return {"good": 1.0, "flaky": 0.5}.get(task)

    env = env_of(mixed, max_item_retries=1)
    env.definition = type(env.definition)(**{**vars(env.definition), "dataset": ["x"]})
    metrics, samples = await evaluated(env, tmp_path)
    assert metrics["reward"] == pytest.approx((1.0 + 0.5) / 2)  # "good" twice is one task
    assert (metrics["samples"], metrics["failed"], metrics["unscored"]) == (5, 1, 1)
    assert asked["fails"] == asked["flaky"] == 2
    (failed,) = [sample for sample in samples if sample["result"] == "failed"]
    assert "mixed: rollout failed on item" in failed["error"]


async def test_several_samples_of_a_task_give_the_mean_and_the_best(env_of, tmp_path):
    drawn = Counter()

    @environment(["train"], eval_dataset=["a", "b"], eval_samples=2, eval_temperature=0.8)
    async def lucky(task, model):
        drawn[task] += 1
        return {"exact": task == "a" and drawn[task] == 2}

    metrics, samples = await evaluated(env_of(lucky), tmp_path)
    assert (metrics["exact"], metrics["exact_best@2"]) == (0.25, 0.5)
    assert (metrics["items"], len(samples)) == (2, 4)


def test_pass_at_k_is_the_unbiased_estimate_of_measures_of_zero_and_one():
    def sample(item, **numbers):
        return EvalSample({"id": item}, Result.SCORED, numbers)

    right = [1.0, 0.0, 0.0, 0.0]
    samples = [sample("a", exact=one, digits=one / 2) for one in right]
    samples += [sample("b", exact=0.0, digits=1.0) for _ in range(3)]
    found, errors = evaluation_metrics(samples, 4), errors_of_means(samples, 4)
    # Two of the four samples of a: 1 - (3 choose 2) / (4 choose 2) = 1/2; of b 0.
    assert (found["exact"], found["exact_pass@2"]) == (0.125, 0.25)
    assert found["exact_pass@4"] == 1.0  # b has three samples
    assert found["exact_best@4"] == 0.5 and found["digits_best@4"] == 0.75
    assert "digits_pass@2" not in found  # its samples of b alone are 0 or 1
    assert errors["exact_pass@2"] == pytest.approx(0.25)


async def test_an_evaluation_of_failures_only_fails(env_of):
    @environment(["train"], eval_dataset=["a"])
    async def broken(task, model):
        raise ValueError("no judge")

    env = env_of(broken)
    await env.setup()
    with pytest.raises(RolloutError, match="ValueError: no judge.*broken: rollout failed"):
        await env.evaluate()


async def test_what_is_measured_is_in_files_while_another_sample_hangs(env_of, tmp_path):
    path = tmp_path / "partial" / "metrics.json"

    @environment(["train"], eval_dataset=["good", "bad", "hangs"])
    async def slow(task, model):
        if task == "hangs":
            await asyncio.sleep(600)
        return float(task == "good")

    env = env_of(slow, max_item_retries=0)
    env.config.data_dir_to_save_evals = str(tmp_path)
    await env.setup()
    evaluation = asyncio.ensure_future(env.evaluate())
    while not path.exists() or '"items": 2' not in path.read_text():
        await asyncio.sleep(0.01)
    evaluation.cancel()
    await asyncio.gather(evaluation, return_exceptions=True)
    await env.close()
    written = json.loads(path.read_text())
    results = written["results"]["all"]
    assert written["config_general"]["partial_of"] == 3
    assert (results["items"], results["reward"]) == (2, 0.5)
    assert not (tmp_path / "metrics.json").exists()


async def test_an_evaluation_ends_after_two_items_that_fail_by_one_mistake(env_of):
    played = []

    @environment(["train"], eval_dataset=["a", "b", "c"], max_item_retries=0)
    async def broken(task, model):
        played.append(task)
        return "right"

    env = env_of(broken)
    await env.setup()
    with pytest.raises(OnlyFailures, match=r"test_rollouts.py:\d+: .*not str 'right'"):
        await env.evaluate()
    await env.close()
    assert played == ["a", "b"]


async def test_an_evaluation_of_a_function_without_a_return_ends(env_of):
    @environment(["train"], eval_dataset=["a", "b", "c"])
    async def broken(task, model):
        await model.chat("hello")

    env = env_of(broken)
    await env.setup()
    with pytest.raises(OnlyFailures, match="returned None: return a number"):
        await env.evaluate()
    await env.close()


async def test_means_have_standard_errors_over_the_tasks(env_of, tmp_path, capsys):
    @environment(["train"], eval_dataset=["a", "b", "c", "d"], eval_samples=2)
    async def half(task, model):
        return task in "ab"

    await evaluated(env_of(half), tmp_path)
    assert "|0.5000|±|0.2887|" in capsys.readouterr().out


async def test_evaluation_without_tasks_is_a_separate_error(env_of):
    env = env_of(environment(iter(SUMS))(sums.rollout))
    await env.setup()
    with pytest.raises(ConfigError, match="eval_dataset"):
        await env.evaluate()


async def test_evaluation_of_a_hosted_model_needs_no_token_ids(inference_url, fake):
    fake.reply = lambda prompt, i: "5"
    server = APIServerConfig(base_url=inference_url, server_type="openai", model_name="gpt")
    env = sums(sums.env_config_cls(use_wandb=False, eval_fraction=0.5), [server])
    await env.setup()
    await env.evaluate()
    await env.close()
    assert set(fake.paths) == {"/v1/chat/completions"}


# --- serve --------------------------------------------------------------------------


async def test_a_function_environment_serves_a_trainer_over_the_real_api(api, env_of, fake):
    fake.reply = right_half_of_the_time
    client = api.trainer(batch_size=4, num_steps=3)
    env = env_of(
        sums,
        rollout_server_url=api.url,
        max_batches_offpolicy=1,
        data_path_to_save_groups=None,
    )
    serving = asyncio.ensure_future(env.env_manager())
    batches = await train(client, 3, serving)
    await asyncio.wait_for(serving, 600)
    groups = [group for claimed in batches for group in claimed.batch]
    assert len(groups) == 6
    assert {tuple(sorted(group.scores)) for group in groups} == {(0.0, 1.0)}
    assert len({group.group_id for group in groups}) == 6


async def test_a_restart_continues_at_the_saved_data_position(env_of, fake, tmp_path):
    fake.reply = right_half_of_the_time
    env = env_of(sums, eval_fraction=0.0)
    env.checkpoint_dir = str(tmp_path / "checkpoints")
    await env.setup()
    items = [await env.get_next_item() for _ in range(5)]
    for item in items[:3]:
        await env.collect_trajectories(item)
    env.save_checkpoint(7)
    again = env_of(sums, eval_fraction=0.0)
    again.checkpoint_dir, again.curr_step = env.checkpoint_dir, 7
    await again.setup()
    again.load_checkpoint()
    repeated = [await again.get_next_item() for _ in range(2)]
    assert repeated == items[3:]  # they were under way
    assert await again.get_next_item() == await env.get_next_item()
    await env.close()
    await again.close()
