"""Completions in the types of the openai package."""

from __future__ import annotations

import pickle
import warnings

from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.replies import (
    chat_reply,
    read_chat_completion,
    text_reply,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OUTPUTS = [
    Generation(
        prompt_ids=[1, 2, 3],
        tokens=tokens,
        logprobs=[-0.5] * len(tokens),
        versions=[0] * len(tokens),
        finish_reason="stop",
    )
    for tokens in ([4, 5], [6])
]


def choice(index: int, **message: object) -> dict[str, object]:
    message = {"role": "assistant", "content": None, **message}
    return {"index": index, "finish_reason": "stop", "message": message}


def test_usage_counts_the_prompt_once_and_every_sampled_token() -> None:
    reply = chat_reply("m", [choice(0, content="a"), choice(1, content="b")], OUTPUTS)
    assert (reply.object, reply.model) == ("chat.completion", "m")
    assert [one.message.content for one in reply.choices] == ["a", "b"]
    usage = reply.usage
    assert usage is not None
    counts = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    assert counts == (3, 3, 6)


def test_every_text_completion_has_an_id() -> None:
    choices = [{"index": 0, "finish_reason": "stop", "text": "a", "logprobs": None}]
    first, second = (text_reply("m", choices, OUTPUTS[:1]) for _ in range(2))
    assert first.choices[0].text == "a" and first.object == "text_completion"
    assert first.id.startswith("cmpl-") and first.id != second.id


def test_tool_calls_stay_dicts_and_serialise_without_a_warning() -> None:
    reply = chat_reply("m", [choice(0, tool_calls=[CALL]), choice(1, content="b")], OUTPUTS)
    assert reply.choices[0].message.tool_calls == [CALL]
    assert reply.choices[1].message.tool_calls is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dumped = reply.model_dump()
    assert dumped["choices"][0]["message"]["tool_calls"] == [CALL]
    assert pickle.loads(pickle.dumps(reply)) == reply


def test_a_payload_without_calls_is_the_type_of_the_package() -> None:
    read = read_chat_completion({"id": "x", "choices": [choice(0, tool_calls=None)]})
    assert type(read).__name__ == "ChatCompletion"
