"""The balance sheet in the whole: end states add up to the tokens that the server returned."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from atroposlib.api.archive.load import open_explorer
from atroposlib.api.decisions.balance import with_server_count
from atroposlib.envs.rollout.groups import from_node, from_nodes
from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.routing.manager import ServerManager
from tests.envs.runtime.test_serve import train
from tests.envs.toys import ToyEnv, eventually, toy_env
from tests.serving import WAIT_S


def states_of(account):
    return {line["state"]: (line["tokens"], line["samples"]) for line in account["lines"]}


async def balance(api, **query):
    async with httpx.AsyncClient(base_url=api.url) as http:
        return (await http.get("/explore/account", params=query)).raise_for_status().json()


async def settled_balance(api, generated):
    """The balance once the index shows the acks of the last batch."""
    account: dict = {}

    async def read():
        while account.get("moving", 1) or account["unknown"]:
            account.update(await balance(api))
            await asyncio.sleep(0.02)

    try:
        await asyncio.wait_for(read(), WAIT_S)
    except asyncio.TimeoutError:
        raise AssertionError(
            f"{generated} tokens were returned, the balance is {account}"
        ) from None
    return account


class SampleEnv(ToyEnv):
    """Samples one by one: every fifth fails after its reply; a judge is called for each."""

    drawn = 0

    async def get_next_item(self):
        """None if the run needs no further group, so that no request is cancelled at its end."""
        pool = self._atropos.pool
        return None if pool.busy + pool.counts["kept"] >= 6 else await super().get_next_item()

    async def collect_trajectory(self, item):
        self.drawn += 1
        number = self.drawn
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}], max_tokens=20
            )
            [node] = managed.nodes_for(completion)
        await self.judge.chat_completion(
            messages=[{"role": "user", "content": "?"}], max_tokens=9
        )
        if number % 5 == 0:
            raise RuntimeError("the tool broke")
        if number % 7 == 0:
            return None, []
        return from_node(node, float(number)), []

    collect_trajectories = ToyEnv.__bases__[0].collect_trajectories

    async def evaluate(self, *args, **kwargs):
        await self.server.chat_completion(
            messages=[{"role": "user", "content": "test"}], max_tokens=5, split="eval"
        )
        await super().evaluate(*args, **kwargs)


async def test_the_end_states_add_up_to_the_tokens_that_the_server_returned(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    server = APIServerConfig(base_url=inference_url, server_type="vllm", model_name="fake")
    config = toy_config.model_copy(
        update={
            "rollout_server_url": api.url,
            "metrics_path": None,
            "eval_at_end": True,
            "items": 6,
        }
    )
    env = SampleEnv(config, [server])
    env.judge = ServerManager([server])
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 3, serving)
    await asyncio.wait_for(serving, WAIT_S)
    await env.judge.close()

    account = await settled_balance(api, fake.returned_tokens)
    states = states_of(account)
    assert sum(tokens for tokens, _ in states.values()) == fake.returned_tokens
    assert account["generated"] == fake.returned_tokens
    assert (account["supplied"], account["unknown"], account["moving"]) == (0, 0, 0)
    assert states["trained"][1] == 12
    assert states["dropped/env_error"][1] == env.drawn // 5
    assert states["evaluated"] == (5, 0)
    assert states["helper"] == (9 * env.drawn, 0)
    assert account["useful"] == states["trained"][0] / fake.returned_tokens
    by_env = await balance(api, by="env")
    assert {line["env"] for line in by_env["lines"]} == {"toy_0"}
    by_step = await balance(api, by="step")
    trained = [line for line in by_step["lines"] if line["state"] == "trained"]
    assert sum(line["samples"] for line in trained) == 12
    api.stop()  # the counters survive a restart of the API
    api.start()
    again = await settled_balance(api, fake.returned_tokens)
    assert states_of(again) == states


class LostServer(SampleEnv):
    """A sample of the first item ends well, then the server is lost until the next attempt."""

    lost, finished = 0, False

    async def collect_trajectory(self, item):
        self.drawn += 1
        number = self.drawn
        if number > 1 and self.lost < 3:
            self.lost += 1
            await eventually(lambda: self.finished)
            raise InferenceUnavailable("the server is away")
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}], max_tokens=20
            )
            [node] = managed.nodes_for(completion)
        self.finished = True
        return from_node(node, float(number)), []


async def test_after_a_lost_server_only_the_missing_samples_are_drawn(
    api, fake, inference_url, toy_config, tmp_path
):
    client = api.trainer(batch_size=2, num_steps=3)
    server = APIServerConfig(base_url=inference_url, server_type="vllm", model_name="fake")
    settings = {"rollout_server_url": api.url, "metrics_path": None, "items": 6}
    settings |= {"journal_dir": str(tmp_path / "journals"), "max_num_workers": 1}
    env = LostServer(toy_config.model_copy(update=settings), [server])
    serving = asyncio.ensure_future(env.env_manager())
    await asyncio.wait_for(train(client, 3), WAIT_S)
    await asyncio.wait_for(serving, WAIT_S)

    assert env.lost > 1 and env._atropos.pool.counts["retried"] == 1
    assert len(fake.requests) == 6  # three groups of two: nothing was sampled twice
    account = await settled_balance(api, fake.returned_tokens)
    assert account["generated"] == account["trained"] == fake.returned_tokens


async def test_groups_of_an_old_environment_and_its_drops_balance(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, metrics_path=None)
    env.same_scores = True
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.dropped["same_scores"] >= 2)
    env.same_scores = False
    await train(client, 3, serving)
    await asyncio.wait_for(serving, WAIT_S)
    account = await settled_balance(api, fake.returned_tokens)
    states = states_of(account)
    assert sum(tokens for tokens, _ in states.values()) == fake.returned_tokens
    assert states["trained"][1] == 12
    assert (
        states["dropped/same_scores"][1] == 2 * env._atropos.group_stats.dropped["same_scores"]
    )


class UnscoredEnv(ToyEnv):
    """An environment of the original: samples a row more than it needs, whose reward is None."""

    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}], n=3, max_tokens=20
            )
            nodes = managed.nodes_for(completion)
        group = from_nodes(nodes, [0.0, 1.0, 2.0])
        group["scores"] = [0.0, None, 2.0]
        return group, []


async def test_a_row_whose_reward_is_none_is_dropped_and_not_masked(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    server = APIServerConfig(base_url=inference_url, server_type="vllm", model_name="fake")
    config = toy_config.model_copy(
        update={"rollout_server_url": api.url, "metrics_path": None}
    )
    env = UnscoredEnv(config, [server])
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 3, serving)
    await asyncio.wait_for(serving, WAIT_S)
    states = states_of(await settled_balance(api, fake.returned_tokens))
    assert sum(tokens for tokens, _ in states.values()) == fake.returned_tokens
    groups = len(fake.requests)
    # replies of the same length, of which each group keeps two and loses one
    assert states["dropped/no_score"] == (fake.returned_tokens // 3, groups)
    assert states["trained"] == (fake.returned_tokens // 3 * 2, 12)
    assert states.keys() == {"dropped/no_score", "trained"}


KILLED = """
import asyncio, sys
from tests.envs.toys import ToyConfig, toy_env
config = ToyConfig(use_wandb=False, group_size=2, max_batches_offpolicy=1, total_steps=3)
url, api = sys.argv[1:]
env = toy_env(config, url, rollout_server_url=api, metrics_path=None)
asyncio.run(env.env_manager())
"""


@pytest.mark.slow
async def test_a_killed_process_loses_only_tokens_that_the_server_counted(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", KILLED, inference_url, api.url]
    with subprocess.Popen(
        words, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    ) as killed:
        await train(client, 1)
        await eventually(lambda: len(fake.requests) > 2)  # sampled after the first batch
        killed.kill()
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, metrics_path=None)
    serving = asyncio.ensure_future(env.env_manager())
    await train(client, 2, serving)
    await asyncio.wait_for(serving, WAIT_S)
    api.stop()
    with open_explorer(api.data_dir, None) as (_, explorer):
        account = explorer.account({})
    api.start()
    assert (account.unknown, account.supplied) == (0, 0)
    assert account.generated <= fake.returned_tokens
    counted = with_server_count(account, fake.returned_tokens)
    tokens = {line.state: line.tokens for line in counted.lines}
    assert sum(tokens.values()) == fake.returned_tokens
    assert tokens["trained"] == account.trained > 0


async def test_a_reset_in_mid_run_begins_a_balance_from_zero(
    api, fake, inference_url, toy_config
):
    first = api.trainer(batch_size=4, num_steps=5)
    env = toy_env(
        toy_config, inference_url, rollout_server_url=api.url, metrics_path=None, total_steps=2
    )
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: env._atropos.group_stats.sent == 2)
    before = fake.returned_tokens
    await asyncio.to_thread(first.reset)
    second = await asyncio.to_thread(api.trainer, 4, 2)
    await train(second, 2, serving)
    await asyncio.wait_for(serving, WAIT_S)
    sampled = fake.returned_tokens - before
    account = await settled_balance(api, sampled)
    assert states_of(account) == {"trained": (sampled, 8)}
    assert (account["generated"], account["useful"], account["unknown"]) == (sampled, 1.0, 0)
