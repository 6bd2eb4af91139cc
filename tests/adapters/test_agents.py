"""The programs of the page about agents of other frameworks, run with the real packages."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import sys
import threading
from pathlib import Path

import pytest

from atroposlib.errors import RolloutError
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.fake_shapes import END, decode, encode, fake_logprob
from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.adapters.conftest import require
from tests.envs.conftest import RunningApi
from tests.envs.function_env.function_toys import made

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PROGRAMS = {
    name: source
    for source in BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for name in re.findall(r"^    (\w+)\.cli\(\)", source, flags=re.MULTILINE)
}
PACKAGES = {
    "openai_agents": "agents",
    "langgraph_agent": "langchain_openai",
    "pydantic_ai_agent": "pydantic_ai",
    "smolagents_agent": "smolagents",
    "command_line_agent": "llm",
}
REWRITES = {"smolagents_agent"}  # earlier calls as other text: a row for each turn
LONGEST_S = 300.0
WITH_A_CHILD = """
import fcntl, pathlib, subprocess, sys, openai
lock = open(pathlib.Path.home() / "lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
command = [sys.executable, "-c", "import time; time.sleep(3600)"]
subprocess.Popen(command, pass_fds=[lock.fileno()])
asked = [{"role": "user", "content": sys.argv[1]}]
openai.OpenAI().chat.completions.create(model="any", messages=asked)
"""


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def calculates(prompt, index=0):
    """Two calls of the tool, then the product; each needs the result before it."""
    a = int(re.findall(r"What is (\d+) \*", prompt)[-1])
    if str(a * a * 7) in prompt:
        answer = str(a * a * 7)
        return call("final_answer", answer=answer) if "final_answer" in prompt else answer
    first = str(a * a) in prompt
    return call("multiply", a=a * a if first else a, b=7 if first else a)


def program(name, folder, **replaced):
    """The environment of a program that lies in ``folder``: smolagents reads its source."""
    path = folder / f"{name}.py"
    path.write_text(PROGRAMS[name], encoding="utf-8")
    names = {"__name__": "written_in_the_docs"}
    exec(compile(PROGRAMS[name], str(path), "exec", dont_inherit=True), names)
    names.update(replaced)
    return names[name]


@pytest.fixture
def fake():
    fake = FakeInference(reply=calculates)
    with fake.running() as url:
        fake.url = f"{url}/v1"
        yield fake


@pytest.fixture
def env_of(fake, tmp_path, monkeypatch):
    """The environment of a program, over a server with scripted replies."""
    monkeypatch.setenv("HOME", str(tmp_path))  # settings and logs of the programs

    def make(name, replaced=(), **settings):
        require(PACKAGES[name])
        once = {"group_size": 2, "total_steps": 1, "max_num_workers": 1}
        limits = {"max_token_length": 100_000, "describe_tools": True}
        given = {**once, **limits, **settings}
        env_cls = program(name, tmp_path, **dict(replaced))
        return made(env_cls, fake.url, tmp_path, ASCII_ALPHABET, **given)

    return make


def turns_of(fake):
    """Prompt and reply of each generation, as the server saw and sent them."""
    for _, body in fake.requests:
        prompt = body["prompt"]["prompt_token_ids"]
        yield prompt, [*encode(calculates(decode(prompt))), END]


@pytest.mark.parametrize("name", PACKAGES)
async def test_a_trainer_gets_a_group_with_the_tokens_that_the_agent_sampled(
    name, env_of, fake, tmp_path
):
    api = RunningApi(tmp_path / "queue")
    api.start()
    try:
        env = env_of(name, rollout_server_url=api.url)
        rows = 6 if name in REWRITES else 2
        trainer = api.trainer(batch_size=rows, num_steps=1, max_token_len=100_000)
        serving = asyncio.ensure_future(env.env_manager())
        batch = None
        while batch is None and not serving.done():
            batch = (await asyncio.to_thread(trainer.claim, wait_s=5.0)).batch
        env._atropos.serving.shutdown.request("the test has seen enough")
        await asyncio.wait_for(serving, LONGEST_S)
    finally:
        api.close()
    found = [
        row
        for group in batch
        for row in zip(
            group.tokens, group.masks, group.inference_logprobs, group.scores, strict=True
        )
    ]
    turns = list(turns_of(fake))
    assert len(found) == rows
    for tokens, labels, logprobs, score in found:
        own = [(p, r) for p, r in turns if tokens[: len(p) + len(r)] == p + r]
        assert len({len(p) for p, _ in own}) == (1 if name in REWRITES else 3)
        expected = [-100] * len(tokens)
        for prompt, reply in own:
            expected[len(prompt) : len(prompt) + len(reply)] = reply
        assert (labels, labels[-1], score) == (expected, END, 1.0)
        trained = [i for i, label in enumerate(labels) if label != -100]
        assert [logprobs[i] for i in trained] == [fake_logprob(tokens[i]) for i in trained]


@pytest.mark.parametrize("name", PACKAGES)
async def test_an_agent_that_fails_is_a_failed_rollout_without_a_score(name, env_of, fake):
    env = env_of(name)
    await env.setup()
    item = await env.get_next_item()
    fake.on_request = lambda path, body: len(fake.requests) > 1 and fake.fail_next.append(400)
    with pytest.raises(RolloutError, match="400"):
        await env.rollouts.train(item)
    await env.close()


@pytest.mark.parametrize("name", ["openai_agents", "langgraph_agent", "pydantic_ai_agent"])
async def test_an_agent_that_only_calls_tools_ends_with_the_lowest_score(name, env_of, fake):
    env = env_of(name)
    await env.setup()
    fake.reply = lambda prompt, index: call("multiply", a=1, b=1)
    rollout = await env.rollouts.train(await env.get_next_item())
    assert rollout.reward.score == 0.0 and len(fake.requests) == 6
    await env.close()


async def test_a_cancelled_command_is_killed_with_what_it_started(env_of, fake, tmp_path):
    env = env_of("command_line_agent", {"COMMAND": (sys.executable, "-c", WITH_A_CHILD)})
    await env.setup()
    fake.hold, asked = threading.Event(), threading.Event()
    fake.on_request = lambda path, body: asked.set()
    rollout = asyncio.ensure_future(env.rollouts.train(await env.get_next_item()))
    assert await asyncio.to_thread(asked.wait, LONGEST_S)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    with open(tmp_path / "lock") as lock:
        free = asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        await asyncio.wait_for(free, LONGEST_S)
    await env.close()
