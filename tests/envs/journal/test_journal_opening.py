"""An environment that ends with unfinished groups, and its next life, over a real rollout API."""

from __future__ import annotations

import asyncio
import itertools
import logging

import httpx
import pytest

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.journal.journal_opening import journal_folder, pack_groups
from atroposlib.envs.journal.sample_journal import FOLDER, SampleJournal
from atroposlib.envs.rollout.filters import FilterRules, filter_group
from atroposlib.envs.rollout.groups import from_node
from tests.envs.runtime.test_serve import train
from tests.envs.toys import ToyEnv, eventually, toy_env
from tests.serving import WAIT_S


class SampleEnv(ToyEnv):
    """Draws samples one by one; ``let_through`` of them end, the others wait."""

    collect_trajectories = BaseEnv.collect_trajectories
    let_through = 10**6
    scores = itertools.count(1)

    async def collect_trajectory(self, item):
        self.let_through -= 1
        if self.let_through < 0:
            await asyncio.Event().wait()
        self.rolled_out.append(item["id"])
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}], max_tokens=20
            )
            (node,) = managed.nodes_for(completion)
        return from_node(node, float(next(self.scores))), []


@pytest.fixture
def sample_env(api, inference_url, toy_config):
    def make(kind=SampleEnv, **changes):
        changes = {
            "max_num_workers": 1,
            "total_steps": 1,
            "rollout_server_url": api.url,
            **changes,
        }
        env = toy_env(toy_config, inference_url, **changes)
        return kind(env.config, [env.server.servers[0].config])

    return make


async def test_the_next_life_draws_the_missing_sample_alone(api, fake, sample_env, tmp_path):
    client = api.trainer(batch_size=2, num_steps=1, checkpoint_dir=str(tmp_path))
    first = sample_env()
    first.let_through = 1
    serving = asyncio.ensure_future(first.env_manager())
    await eventually(lambda: [*(tmp_path / FOLDER).glob("*")] and len(fake.requests) == 1)
    await eventually(lambda: first.let_through < 0 and not fake.running_now)
    first._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)

    second = sample_env()
    serving = asyncio.ensure_future(second.env_manager())
    (claimed,) = await train(client, 1)
    await asyncio.wait_for(serving, WAIT_S)
    assert (first.rolled_out, second.rolled_out) == (["item-1"], ["item-1"])
    assert len(fake.requests) == 2
    (group,) = claimed.batch
    assert len(set(group.scores)) == 2
    assert second._atropos.journal.figures()["journal_used_samples"] == 1


async def test_groups_that_an_earlier_life_did_not_post_are_posted_once(
    api, fake, sample_env, tmp_path
):
    client = api.trainer(batch_size=2, num_steps=1, checkpoint_dir=str(tmp_path))
    status = await asyncio.to_thread(httpx.get, f"{api.url}/status")
    run_id = status.json()["run_id"]
    group = {
        "tokens": [[1, 5], [1, 6]],
        "masks": [[-100, 5], [-100, 6]],
        "scores": [0.0, 1.0],
        "idempotency_key": "a-0",
    }
    accepted = filter_group(group, FilterRules(2))
    journal = SampleJournal("toy")
    journal.start(tmp_path / FOLDER, run_id, 10**6)
    journal.begin("a", {"id": "item-0"})
    journal.enter("a", None)
    await journal.before_post(lambda: [*pack_groups([accepted], 0)])
    journal.enter("", None)
    journal.close(delete=False)

    env = sample_env()
    env.let_through = 0
    serving = asyncio.ensure_future(env.env_manager())
    (claimed,) = await train(client, 1)
    await asyncio.wait_for(serving, WAIT_S)
    (posted,) = claimed.batch
    assert (posted.tokens, posted.idempotency_key) == (group["tokens"], "a-0")
    assert fake.requests == []


async def test_a_folder_that_cannot_be_made_is_named_and_the_run_goes_on(
    api, sample_env, tmp_path, caplog
):
    (tmp_path / "file").write_text("")
    client = api.trainer(batch_size=2, num_steps=1, checkpoint_dir=str(tmp_path / "file"))
    env = sample_env(ensure_scores_are_not_same=False)
    with caplog.at_level(logging.WARNING):
        serving = asyncio.ensure_future(env.env_manager())
        await train(client, 1)
        await asyncio.wait_for(serving, WAIT_S)
    assert "no journal in" in caplog.text and "--env.journal_dir" in caplog.text


async def test_without_a_bound_there_is_no_journal(api, sample_env, tmp_path):
    client = api.trainer(batch_size=2, num_steps=1, checkpoint_dir=str(tmp_path))
    serving = asyncio.ensure_future(sample_env(journal_gb=0).env_manager())
    await train(client, 1)
    await asyncio.wait_for(serving, WAIT_S)
    assert not (tmp_path / FOLDER).exists()


def test_the_folder_is_the_configured_one_or_in_that_of_the_trainer(tmp_path):
    assert journal_folder("run", BaseEnvConfig()).as_posix() == f"run/{FOLDER}"
    assert journal_folder("run", BaseEnvConfig(journal_dir="mine")).as_posix() == "mine"
    assert journal_folder("", BaseEnvConfig()) is None
    assert journal_folder("run", BaseEnvConfig(journal_gb=0)) is None
