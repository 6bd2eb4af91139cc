from __future__ import annotations

import asyncio

import pytest

from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.cli import main as run_command_line
from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.wire import Heartbeat
from atroposlib.wire.status import ServerState
from tests.client.harness import announced
from tests.envs.runtime.test_serve import train
from tests.envs.toys import ToyEnv
from tests.serving import WAIT_S


def env_of_directory(config, **changes) -> ToyEnv:
    server = APIServerConfig(base_url="directory://", server_type="vllm", model_name="fake")
    return ToyEnv(config.model_copy(update=changes), [server])


async def test_an_environment_takes_the_servers_of_the_directory_and_counts_its_workers(
    api, fake, inference_url, toy_config
):
    client = api.trainer(batch_size=4, num_steps=3)
    changes = {"metrics_path": None, "max_num_workers": -1, "max_num_workers_per_node": 3}
    env = env_of_directory(toy_config, rollout_server_url=api.url, **changes)
    assert env.max_num_workers == 0
    serving = asyncio.ensure_future(env.env_manager())
    url = inference_url.removesuffix("/v1")
    with announced(api.url, "gpu1", url):
        given = Heartbeat(role="trainer", name="t", phase="x", servers=[ServerState(url=url)])
        await asyncio.to_thread(client.heartbeat, given)
        await train(client, 3, serving)
        assert env.max_num_workers == 3
        await asyncio.wait_for(serving, WAIT_S)
    assert [server.root_url for server in env.server.servers] == [url]


async def test_the_wait_for_a_server_is_bounded_and_named(api, toy_config):
    client = api.trainer(batch_size=4, num_steps=2)
    changes = {"metrics_path": None, "api_timeout_s": 0.5}
    env = env_of_directory(toy_config, rollout_server_url=api.url, **changes)
    await asyncio.to_thread(client.claim, wait_s=0.0)
    with pytest.raises(InferenceUnavailable, match="in the directory of the rollout API"):
        await asyncio.wait_for(env.env_manager(), WAIT_S)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("serve",), "needs --env.tokenizer_name"),
        (("process", "--env.tokenizer_name", "x"), "goes with serve"),
    ],
)
def test_a_directory_is_refused_where_no_server_can_be_asked(words, named):
    with pytest.raises(SystemExit) as ended:
        run_command_line(ToyEnv, [*words, "--openai.base_url", "directory://"])
    assert ended.value.code == 2
    assert named in str(ended.value.__cause__)
    assert isinstance(ended.value.__cause__, ConfigError)
