"""``serve`` against a real rollout API: pace, versions, restarts, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import httpx
import pytest

from atroposlib.envs.rollout.filters import FilterRules, filter_group
from atroposlib.envs.runtime import registration
from atroposlib.errors import AtroposError
from tests.envs.old_api import OldApi
from tests.envs.toys import eventually, toy_env
from tests.serving import WAIT_S, served


async def train(client, steps, serving=None, *, on_batch=lambda batch, step: None):
    """Claim and ack ``steps`` batches, announcing a version after each."""
    batches = []
    while len(batches) < steps:
        has_left = serving is not None and serving.done()
        if has_left:
            serving.result()
        claimed = await asyncio.to_thread(client.claim, wait_s=1.0)
        if claimed.batch is None:
            # It may end before the last batch, whose groups are queued then.
            assert not has_left, f"the environment left after {len(batches)} batches"
            continue
        batches.append(claimed)
        on_batch(claimed, len(batches))
        await asyncio.to_thread(client.announce_version, len(batches))
        assert await asyncio.to_thread(client.ack, claimed)
    return batches


def lines_of(path):
    return path.read_text().splitlines()


async def test_environment_and_trainer_take_turns_to_the_end(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, metrics_path=None)

    def publish(claimed, step):
        fake.weight_version = step

    serving = asyncio.ensure_future(env.env_manager())
    batches = await train(client, 3, serving, on_batch=publish)
    await asyncio.wait_for(serving, WAIT_S)

    # Two groups of two make a batch of four: nothing more was generated than was trained on.
    assert len(fake.requests) == 6
    assert env._atropos.group_stats.sent == 6
    for number, claimed in enumerate(batches):
        for group in claimed.batch:
            versions = {v for row in group.versions for v in row}
            assert versions == {-1, number}
            assert group.metadata["metrics"] == {"exact": 0.5}
            assert group.metadata["env"] == "toy"
            assert group.finish_reasons == ["stop", "stop"]
            assert group.group_id is not None
            for tokens, masks, logprobs in zip(
                group.tokens, group.masks, group.inference_logprobs
            ):
                trained = [m != -100 for m in masks]
                assert [t for t, on in zip(tokens, trained) if on] == [
                    m for m in masks if m != -100
                ]
                assert all((p == 1.0) != on for p, on in zip(logprobs, trained))
    items = [g.metadata["item"] for claimed in batches for g in claimed.batch]
    assert sorted(items) == [f"item-{i}" for i in range(1, 7)]


async def test_a_dropped_group_is_shown_by_the_explorer_and_delays_no_rollout(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    await asyncio.to_thread(client.claim, wait_s=0.0)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url)
    env.same_scores = True
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.dropped["same_scores"] >= 2)
    dropped = f"{api.url}/explore/rollouts?state=dropped&why=same_scores"
    await eventually(lambda: len(httpx.get(dropped).json()["rows"]) == 2)
    row, _ = httpx.get(dropped).json()["rows"]
    assert (row["env"], row["reward"], row["item"]) == ("toy_0", 0.0, "item-1")
    assert len(env.rolled_out) > 2
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)


async def test_an_environment_without_an_item_names_its_wait_until_one_comes(
    api, fake, inference_url, toy_config
):
    api.trainer(batch_size=4, num_steps=10)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url)
    next_item, items = env.get_next_item, asyncio.Event()

    async def next_item_if_any():
        return await next_item() if items.is_set() else None

    env.get_next_item = next_item_if_any
    serving = asyncio.ensure_future(env.env_manager())
    expected = "an item: get_next_item returned None"
    await eventually(
        lambda: env._atropos.serving and env._atropos.serving.waiting_on == expected
    )
    items.set()
    await eventually(lambda: env._atropos.group_stats.sent > 0)
    await eventually(lambda: env._atropos.serving.waiting_on != expected)
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)


async def test_two_batches_ahead_are_generated_while_one_is_trained(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=10)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, max_batches_offpolicy=2
    )
    env.config.total_steps = 10
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 4)
    claimed = await asyncio.to_thread(client.claim, wait_s=5.0)
    await eventually(lambda: env._atropos.serving.status.current_step == 1)
    assert env._atropos.group_stats.sent == 4  # the leased batch still counts
    await asyncio.to_thread(client.ack, claimed)
    await eventually(lambda: env._atropos.group_stats.sent == 6)
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)
    assert len(fake.requests) == 6


async def test_groups_accepted_between_the_status_and_the_start_leave_no_room_twice(
    api, fake, inference_url, toy_config
):
    api.trainer(batch_size=4, num_steps=10)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, max_batches_offpolicy=2
    )
    env.gate = asyncio.Event()

    async def slow_checks():
        if len(env.rolled_out) == 4:
            env.gate.set()
            await eventually(lambda: env._atropos.pool.busy == 0)

    env.env_step_checks = slow_checks
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(
        lambda: (
            env._atropos.serving and env._atropos.serving.phase.value == "paused: queue full"
        )
    )
    assert env._atropos.group_stats.sent == len(env.rolled_out) == 4
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)


async def test_groups_that_arrive_while_the_status_is_read_do_not_end_the_run_early(
    api, fake, inference_url, toy_config
):
    """The six groups of the first turn are in the second status and accepted since it began."""
    client = api.trainer(batch_size=4, num_steps=4)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, max_batches_offpolicy=3
    )
    env.config.total_steps = 4
    env.gate = asyncio.Event()
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.serving and env._atropos.serving.sender)
    read = env._atropos.serving.client.status_env

    async def read_after_all_sends(who):
        if len(env.rolled_out) == 6:
            env.gate.set()
            await eventually(lambda: env._atropos.pool.busy == 0)
        return await read(who)

    env._atropos.serving.client.status_env = read_after_all_sends
    await train(client, 4, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert env._atropos.group_stats.sent >= 8


async def test_environment_waits_for_the_trainer_and_reports_it(
    api, fake, inference_url, toy_config
):
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=1)
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(
        lambda: env._atropos.serving is not None and env._atropos.serving.waiting_on
    )
    assert "trainer" in env._atropos.serving.waiting_on
    assert fake.requests == []
    client = api.trainer(batch_size=4, num_steps=1)
    await train(client, 1, serving)
    await asyncio.wait_for(serving, WAIT_S)


async def test_a_failed_item_is_tried_again_and_never_scored(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=1)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=1)
    env.failures.extend([ValueError("reward broke"), ValueError("again")])
    serving = asyncio.ensure_future(env.env_manager())
    (claimed,) = await train(client, 1, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert env._atropos.pool.counts["failed"] == env._atropos.pool.counts["retried"] == 2
    assert "collect_trajectories failed on item" in str(env._atropos.pool.last_error)
    assert {score for g in claimed.batch for score in g.scores} == {0.0, 1.0}


@pytest.mark.parametrize("mistakes", ["aaaa", "abcdabcdabcd"], ids=["one", "several"])
async def test_a_run_whose_rollouts_only_fail_stops_with_the_reason(
    api, inference_url, toy_config, mistakes
):
    api.trainer(batch_size=4, num_steps=1)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, max_failures_in_a_row=4
    )
    env.failures.extend(map(ValueError, mistakes))
    with pytest.raises(AtroposError, match=r"toys.py:\d+: .*toy: collect_trajectories failed"):
        await asyncio.wait_for(env.env_manager(), WAIT_S)
    assert env._atropos.group_stats.sent == 0


async def test_an_api_restart_loses_no_group_and_the_run_continues(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=2)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=2)
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    await asyncio.to_thread(api.stop)
    await eventually(lambda: "rollout API" in (env._atropos.serving.waiting_on or ""))
    await asyncio.to_thread(api.start)
    batches = await train(client, 2, serving)
    await asyncio.wait_for(serving, WAIT_S)
    items = [g.metadata["item"] for claimed in batches for g in claimed.batch]
    assert sorted(items) == [f"item-{i}" for i in range(1, 5)]


async def test_reset_makes_the_environment_join_the_new_run(
    api, fake, inference_url, toy_config
):
    first = api.trainer(batch_size=4, num_steps=5)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=2)
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    old_run = env._atropos.joined_run.registration.run_id
    await asyncio.to_thread(first.reset)
    second = await asyncio.to_thread(api.trainer, 4, 2)
    batches = await train(second, 2, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert env._atropos.joined_run.registration.run_id != old_run
    items = {g.metadata["item"] for claimed in batches for g in claimed.batch}
    assert items == {f"item-{i}" for i in range(3, 7)}


async def test_a_group_sampled_for_a_run_that_was_reset_is_dropped_and_counted(
    api, fake, inference_url, toy_config
):
    first = api.trainer(batch_size=4, num_steps=5)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url)
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    group = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [0.0, 1.0]}
    stale = env._atropos.joined_run.registration
    await asyncio.to_thread(first.reset)
    second = await asyncio.to_thread(api.trainer, 4, 5)
    kept = filter_group({**group, "idempotency_key": "k"}, FilterRules(group_size=2))
    assert await env._atropos.sender.send([kept], {"id": "old"}, stale.run_id) == []
    # Rollouts that were under way at the reset are dropped like this one.
    assert env._atropos.group_stats.dropped["run_ended"] >= 1
    await train(second, 1, serving)  # which leaves room for one more, if others were faster
    await eventually(lambda: "old" in env.rolled_out)  # its item is not lost
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)


async def test_sigterm_finishes_sends_and_disconnects(
    api, fake, inference_url, toy_config, tmp_path
):
    client = api.trainer(batch_size=4, num_steps=5)
    metrics, groups = tmp_path / "metrics.jsonl", tmp_path / "groups.jsonl"
    env = toy_env(
        toy_config,
        inference_url,
        rollout_server_url=api.url,
        metrics_path=str(metrics),
        data_path_to_save_groups=str(groups),
    )
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, WAIT_S)
    assert len(groups.read_text().splitlines()) == 2
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert last["train/items_sent_to_api"] == 2
    assert last["train/exact"] == 0.5
    status = await asyncio.to_thread(client.status)
    (me,) = [p for p in status.participants if p.role == "env"]
    assert me.phase == "draining"


async def test_no_rollout_begins_that_would_be_staler_than_the_bound(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3, max_staleness=0)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, max_batches_offpolicy=3
    )
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(
        lambda: env._atropos.serving is not None and env._atropos.serving.admission.refusal
    )
    await eventually(lambda: env._atropos.serving.phase.value == "paused: not admitted")
    assert (
        env._atropos.group_stats.sent == 2 and len(fake.requests) == 2
    )  # the queue alone would take six
    assert "policy versions later" in env._atropos.serving.waiting_on
    await train(client, 3, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert len(fake.requests) == 6


async def test_admissions_of_rollouts_without_a_group_are_released(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=1, max_staleness=0)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=1)
    env.failures.extend(ValueError(word) for word in "abcdef")
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 1, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert env._atropos.pool.counts["failed"] == 6
    assert env._atropos.group_stats.samples == {"env_error": 12}


async def test_servers_receive_the_policy_version_of_the_api(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=2)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=2)
    told = []
    env.server.announce_version = told.append
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 2, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert told[0] == 0 and set(told) >= {0, 1}


async def test_an_environment_serves_the_original_api(fake, inference_url, toy_config):
    old, told = OldApi(batch_size=4), []
    with served(old.app) as url:
        env = toy_env(toy_config, inference_url, rollout_server_url=url, total_steps=2)
        env.server.announce_version = told.append
        serving = asyncio.ensure_future(env.env_manager())
        await eventually(lambda: len(old.groups) == 2 or serving.done())
        env._atropos.serving.shutdown.request("test")
        await asyncio.wait_for(serving, WAIT_S)
    assert [group["scores"] for group in old.groups] == [[0.0, 1.0]] * 2
    assert {group["env_id"] for group in old.groups} == {0}
    assert set(told) == {None}  # it knows no versions


async def test_a_restarted_trainer_with_larger_batches_is_followed(
    api, fake, inference_url, toy_config, monkeypatch
):
    monkeypatch.setattr(registration, "REFRESH_S", 0.0)
    api.trainer(batch_size=4, num_steps=5)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, total_steps=5)
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    await asyncio.to_thread(api.trainer, 8, 5)
    await eventually(lambda: env._atropos.group_stats.sent == 4)
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)


async def test_evaluations_measure_the_weights_of_their_step(
    api, fake, inference_url, toy_config, tmp_path
):
    client = api.trainer(batch_size=4, num_steps=4)
    env = toy_env(
        toy_config,
        inference_url,
        rollout_server_url=api.url,
        total_steps=4,
        steps_per_eval=2,
        eval_at_start=True,
        eval_at_end=True,
        data_dir_to_save_evals=str(tmp_path / "evals"),
        samples_path=str(tmp_path / "samples.jsonl"),
    )
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 4, serving)
    await asyncio.wait_for(serving, WAIT_S)
    measured = [(at["eval_step"], at["eval_policy_version"]) for at in env.evaluated_at]
    assert measured == [(0, 0), (2, 2), (4, 4)]
    assert all(
        at["eval_policy_version"] == at["eval_policy_version_at_end"]
        for at in env.evaluated_at
    )
    written = json.loads((tmp_path / "evals" / "step-4" / "metrics.json").read_text())
    assert written["config_general"]["eval_policy_version"] == 4
    assert written["results"]["all"] == {"exact": 0.25}
    steps = [json.loads(line)["step"] for line in lines_of(tmp_path / "samples.jsonl")]
    assert steps == [0, 2, 4]


async def test_a_failing_evaluation_is_counted_and_the_run_continues(
    api, inference_url, toy_config, tmp_path
):
    client = api.trainer(batch_size=4, num_steps=1)
    path = tmp_path / "metrics.jsonl"
    env = toy_env(
        toy_config,
        inference_url,
        rollout_server_url=api.url,
        total_steps=1,
        eval_at_start=True,
        metrics_path=str(path),
    )

    async def broken(*args, **kwargs):
        raise KeyError("no test split")

    env.evaluate = broken
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 1, serving)
    await asyncio.wait_for(serving, WAIT_S)
    assert any(json.loads(line).get("eval/failed") == 1 for line in lines_of(path))


async def test_stopping_interrupts_the_wait_for_an_absent_api(toy_config):
    env = toy_env(toy_config, "http://127.0.0.1:9/v1", rollout_server_url="http://127.0.0.1:9")
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(
        lambda: env._atropos.serving is not None and env._atropos.serving.waiting_on
    )
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)
    assert serving.done() and env._atropos.group_stats.sent == 0
