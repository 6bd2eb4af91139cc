"""From what a managed session returned to one :class:`Answer`, for whichever API. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.generation.proxy.apis.request import Answer, Ask, Choice, Json, Kind
from atroposlib.generation.sampling.generation import UNKNOWN_VERSION, Generation
from atroposlib.generation.sessions.sequences import SequenceNode

ID_HEX_DIGITS = 12


def new_id() -> str:
    return uuid.uuid4().hex[:ID_HEX_DIGITS]


def bare_id(completion_id: str) -> str:
    """``chatcmpl-0123456789ab`` -> ``0123456789ab``: one completion under each API's names."""
    return completion_id.replace("_", "-").rpartition("-")[2]


def answer_of(
    completion: Any,
    nodes: Sequence[SequenceNode],
    ask: Ask,
    *,
    answer_id: str,
    created: int,
    model: str,
) -> Answer:
    """The answer of a completion (openai's type) whose i-th choice is the i-th node."""
    usage = getattr(completion, "usage", None)
    prompt_tokens = int(getattr(usage, "prompt_tokens", 0) or 0)
    choices = [
        _choice(choice, node, ask, prompt_tokens)
        for choice, node in zip(completion.choices, nodes)
    ]
    known = ask.keep_prompt and nodes and not is_made_up(nodes[0])
    return Answer(
        id=answer_id,
        created=created,
        model=model,
        choices=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
        completion=completion,
        prompt_ids=nodes[0].tokens[:prompt_tokens] if known else None,
    )


def generations_of(answer: Answer, nodes: Sequence[SequenceNode]) -> list[Generation]:
    """What each choice added to the sequence, for the rows."""
    found: list[Generation] = []
    for node in nodes:
        start, end = answer.prompt_tokens, len(node.tokens)
        found.append(
            Generation(
                prompt_ids=node.tokens[:start],
                tokens=node.tokens[start:],
                logprobs=node.logprobs[start:],
                versions=node.versions[start:] or [UNKNOWN_VERSION] * (end - start),
                finish_reason=str(node.metadata.get("finish_reason", "stop")),
            )
        )
    return found


def is_made_up(node: SequenceNode) -> bool:
    """Its tokens stand for text of a server that returns none."""
    return bool(node.metadata.get("dummy_tokens"))


def cut_at_stop(text: str, stop: Sequence[str] | None) -> str:
    """Text before the first stop string: OpenAI's APIs do not return the string itself."""
    found = [at for word in stop or [] if (at := text.find(word)) >= 0]
    return text[: min(found)] if found else text


def _choice(choice: Any, node: SequenceNode, ask: Ask, prompt_tokens: int) -> Choice:
    if ask.kind is Kind.TEXT:
        content, calls = choice.text, []
    else:
        content = choice.message.content
        calls = [_plain(call) for call in getattr(choice.message, "tool_calls", None) or []]
    if ask.one_tool_call:
        calls = calls[:1]
    return Choice(
        content=content if content is None else cut_at_stop(content, ask.stop),
        tool_calls=calls,
        finish_reason=agent_reason(choice.finish_reason),
        tokens=[] if is_made_up(node) else node.tokens[prompt_tokens:],
        logprobs=[] if is_made_up(node) else node.logprobs[prompt_tokens:],
    )


def agent_reason(reason: Any) -> str:
    """A generation that stayed cut short by new weights reads like one that hit its limit."""
    return "length" if reason == "abort" else str(reason or "stop")


def _plain(call: Any) -> Json:
    if isinstance(call, Mapping):
        return dict(call)
    found: Json = call.model_dump(exclude_none=True)
    return found
