"""The scripted engine: any text comes back, and a conversation goes on with its own replies."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.errors import ConfigError
from atroposlib.validation.probes import GARBAGE
from atroposlib.validation.scripted_engine import (
    PLAYING,
    ScriptedGroup,
    byte_tokenizer,
    scripted_manager,
)
from atroposlib.validation.sessions import RecordingSession

ASKED = [{"role": "user", "content": "Wie groß ist √2?\n"}]


@pytest.fixture
def tokenizer(tmp_path):
    return byte_tokenizer(tmp_path)


def test_any_text_comes_back_from_its_tokens(tokenizer):
    for text in (*GARBAGE.values(), "groß √2 \t\n", "<|user|>a<|end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


async def test_samples_that_start_alike_go_on_with_their_own_scripts(tokenizer):
    scripts = [RecordingSession([f"a{name}", f"b{name}"]) for name in "xyz"]
    token = PLAYING.set(ScriptedGroup(scripts))
    manager = scripted_manager(tokenizer, None)

    async def sample():
        messages, said = list(ASKED), []
        async with manager.managed_server(tokenizer=tokenizer) as managed:
            for _ in range(2):
                completion = await managed.chat_completion(messages=messages)
                said.append(completion.choices[0].message.content)
                messages += [{"role": "assistant", "content": said[-1]}, *ASKED]
        return said

    try:
        said = await asyncio.gather(*(sample() for _ in range(3)))
        assert sorted(said) == [[f"a{name}", f"b{name}"] for name in "xyz"]
        assert scripts[0].requests[0] == ASKED and len(scripts[0].requests) == 2
        completion = await manager.chat_completion(messages=ASKED, n=2)
        assert {one.message.content for one in completion.choices} <= {"ax", "ay", "az"}
    finally:
        PLAYING.reset(token)
        await manager.close()


async def test_a_call_outside_of_a_rollout_is_refused(tokenizer):
    manager = scripted_manager(tokenizer, None)
    with pytest.raises(ConfigError, match="outside of a rollout"):
        await manager.completion(prompt="?")
    await manager.close()
