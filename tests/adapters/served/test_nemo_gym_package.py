"""A resources server of the real package as a process, by its own entry point; it starts a local Ray."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from atroposlib.adapters import nemo_gym as adapter
from atroposlib.adapters.nemo_gym import NemoGymConfig
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError

PACKAGE = "nemo_gym"
pytestmark = pytest.mark.slow
COUNTER = "example_session_state_mgmt"
ADD = '<tool_call>{"name": "increment_counter", "arguments": {"count": %s}}</tool_call>'


def started(name):
    """The server ``name`` of the package and its URL; the variables are those of its launcher."""
    from nemo_gym import PARENT_DIR

    own = PARENT_DIR / "resources_servers" / name
    here = {"host": "127.0.0.1", "port": 0}
    about = {"resources_servers": {name: {**here, "entrypoint": "app.py", "domain": "agent"}}}
    config = {"head_server": here, "dry_run": False, name: about}
    folder = tempfile.mkdtemp(prefix="ray")  # short, for its sockets
    values = {"NEMO_GYM_CONFIG_PATH": name, "NEMO_GYM_CONFIG_DICT": json.dumps(config)}
    values |= {"RAY_ADDRESS": "local", "RAY_TMPDIR": folder, "HOME": folder}
    words = [sys.executable, "-u", str(own / "app.py")]
    process = subprocess.Popen(
        words,
        **{"cwd": folder, "env": {**os.environ, **values}, "text": True},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"running on (http://\S+)", line):
            return process, folder, found[1], own / "data" / "example.jsonl"
    raise AssertionError("".join(lines))


def stopped(process, folder):
    process.send_signal(signal.SIGINT)  # after SIGTERM its Ray is not shut down
    process.stdout.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def counter():
    process, folder, url, data = started(COUNTER)
    yield url, data
    stopped(process, folder)


async def test_a_group_of_the_tiny_model_has_logprobs_and_the_servers_rewards(
    counter, sampled
):
    url, data = counter
    short = {"max_tokens": 4, "max_turns": 2, "describe_tools": True}
    groups = await sampled(adapter.nemo_gym, env_id=url, dataset_path=str(data), **short)
    assert groups[0]["scores"] == [0.0] * 4  # by /verify: its counter was not raised
    assert groups[0]["metadata"]["source"]["package"] == "nemo-gym"


async def test_calls_change_the_session_that_verify_reads(counter):
    url, data = counter
    task = adapter.rows(NemoGymConfig(env_id=url, dataset_path=str(data)))[0]
    done = [ADD % 1, ADD % 2, '<tool_call>{"name": "get_counter_value"}</tool_call>', "6"]
    reward, model = await play(adapter.nemo_gym, task, done, env_id=url)
    told = [m["content"] for m in model.replies[-1].messages if m["role"] == "tool"]
    assert reward.score == 1.0 and told[-1] == '{"count":6}'
    for other in ([ADD % 1, "4"], [ADD % '"two"', "3"]):
        assert (await play(adapter.nemo_gym, task, other, env_id=url))[0].score == 0.0


@pytest.mark.parametrize(
    ("field", "message"),
    [("expected_count", "/verify: 422"), ("initial_count", "/seed_session: 422")],
)
async def test_a_failure_of_the_package_is_raised_and_never_a_score(counter, field, message):
    url, data = counter
    row = json.loads(data.read_text().splitlines()[0])
    del row[field]
    with pytest.raises(Exception, match=message):
        await play(adapter.nemo_gym, {"id": "wrong", "row": row}, ["Hm."], env_id=url)


async def test_a_server_with_tools_over_mcp_and_one_that_is_gone_are_no_score():
    process, folder, url, data = started("example_mcp_weather")
    try:
        task = adapter.rows(NemoGymConfig(env_id=url, dataset_path=str(data)))[0]
        with pytest.raises(ConfigError, match="tools over MCP"):
            await play(adapter.nemo_gym, task, ["Cold."], env_id=url)
    finally:
        stopped(process, folder)
    with pytest.raises(Exception, match="attempts failed"):
        await play(adapter.nemo_gym, task, ["Cold."], env_id=url)
