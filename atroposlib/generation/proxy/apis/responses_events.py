"""The events in which a whole response is streamed by the Responses API. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from atroposlib.generation.proxy.apis.chat import pieces
from atroposlib.generation.proxy.apis.request import Answer, Json
from atroposlib.generation.proxy.apis.responses import (
    ResponsesBody,
    opening_reply,
    responses_reply,
)


def responses_events(answer: Answer, body: ResponsesBody) -> Iterator[Json]:
    """``created``, ``in_progress``, the items with their deltas, then the whole response."""
    numbers = count()
    whole = responses_reply(answer, body)
    for event in _unnumbered(answer, body, whole):
        yield {**event, "sequence_number": next(numbers)}


def _unnumbered(answer: Answer, body: ResponsesBody, whole: Json) -> Iterator[Json]:
    opening = opening_reply(answer, body)
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for i, item in enumerate(whole["output"]):
        events = _message_events if item["type"] == "message" else _call_events
        yield from events(i, item)
    end = "completed" if whole["status"] == "completed" else "incomplete"
    yield {"type": f"response.{end}", "response": whole}


def _message_events(i: int, item: Json) -> Iterator[Json]:
    part = item["content"][0]
    at = {"output_index": i, "item_id": item["id"], "content_index": 0}
    empty = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": i, "item": empty}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for text in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": i, "item": item}


def _call_events(i: int, item: Json) -> Iterator[Json]:
    at = {"output_index": i, "item_id": item["id"]}
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": i, "item": empty}
    for text in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, **done}
    yield {"type": "response.output_item.done", "output_index": i, "item": item}
