"""The APIs that agents speak: one class per path below ``/v1``.

Each reads a request into an Ask, and writes an Answer as a reply or as a stream. A further
API is a further class and a line in :data:`APIS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.chat import (
    Decode,
    chat_chunks,
    chat_reply,
    text_chunks,
    text_reply,
)
from atroposlib.generation.proxy.apis.errors import anthropic_body, openai_body
from atroposlib.generation.proxy.apis.messages import (
    MessagesBody,
    messages_ask,
    messages_events,
    messages_reply,
)
from atroposlib.generation.proxy.apis.request import (
    Answer,
    Ask,
    ChatBody,
    Json,
    TextBody,
    chat_ask,
    parsed,
    text_ask,
)
from atroposlib.generation.proxy.apis.responses import (
    ResponsesBody,
    assistant_message,
    responses_ask,
    responses_reply,
)
from atroposlib.generation.proxy.apis.responses_events import responses_events
from atroposlib.generation.proxy.session import Session


class AgentApi(ABC):
    """One request of one API.

    Raises (when made):
        InferenceRefused: 400; the body is not one of this API.
    """

    ask: Ask
    stream: bool
    keep_alive = b": still sampling\n\n"

    @abstractmethod
    def __init__(self, session: Session, raw: Json) -> None: ...

    @abstractmethod
    def reply(self, answer: Answer) -> Json:
        """The whole reply."""

    @abstractmethod
    def frames(self, answer: Answer) -> Iterator[bytes]:
        """The reply as server-sent events."""

    @staticmethod
    def problem(status: int, message: str) -> Json:
        """The body of an error."""
        return openai_body(status, message)

    def problem_frame(self, status: int, message: str) -> bytes:
        """An error after the stream has begun."""
        return data_frame(self.problem(status, message))


class ChatApi(AgentApi):
    """POST chat/completions."""

    def __init__(self, session: Session, raw: Json) -> None:
        self.body = parsed(raw, ChatBody)
        self.ask = chat_ask(raw, self.body)
        self.stream = bool(self.body.stream)
        self._session = session

    def reply(self, answer: Answer) -> Json:
        reply = chat_reply(answer, self.body, decoder_of(self._session))
        if self.body.return_nodes:
            nodes = self._session.managed.nodes_for(answer.completion)
            reply["nodes"] = [node.model_dump() for node in nodes]
        return reply

    def frames(self, answer: Answer) -> Iterator[bytes]:
        yield from map(data_frame, chat_chunks(answer, self.body, decoder_of(self._session)))
        yield b"data: [DONE]\n\n"


class TextApi(AgentApi):
    """POST completions."""

    def __init__(self, session: Session, raw: Json) -> None:
        self.body = parsed(raw, TextBody)
        self.ask = text_ask(raw, self.body)
        self.stream = bool(self.body.stream)
        self._session = session

    def reply(self, answer: Answer) -> Json:
        return text_reply(answer, self.body, decoder_of(self._session))

    def frames(self, answer: Answer) -> Iterator[bytes]:
        yield from map(data_frame, text_chunks(answer, self.body, decoder_of(self._session)))
        yield b"data: [DONE]\n\n"


class ResponsesApi(AgentApi):
    """POST responses."""

    def __init__(self, session: Session, raw: Json) -> None:
        self.body = parsed(raw, ResponsesBody)
        earlier: list[Json] | None = []
        if self.body.previous_response_id:
            earlier = session.conversation(self.body.previous_response_id)
        if earlier is None:
            raise InferenceRefused(404, "previous_response_id: no such response here")
        self.ask, self._conversation = responses_ask(raw, self.body, earlier)
        self.stream = bool(self.body.stream)
        self._session = session

    def reply(self, answer: Answer) -> Json:
        self._remember(answer)
        return responses_reply(answer, self.body)

    def frames(self, answer: Answer) -> Iterator[bytes]:
        self._remember(answer)
        return map(event_frame, responses_events(answer, self.body))

    def problem_frame(self, status: int, message: str) -> bytes:
        error = self.problem(status, message)["error"]
        return event_frame({**error, "type": "error", "sequence_number": 0})

    def _remember(self, answer: Answer) -> None:
        turns = [*self._conversation, assistant_message(answer)]
        self._session.conversations[answer.id] = turns


class MessagesApi(AgentApi):
    """POST messages."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, session: Session, raw: Json) -> None:
        self.body = parsed(raw, MessagesBody)
        self.ask = messages_ask(raw, self.body)
        self.stream = bool(self.body.stream)

    def reply(self, answer: Answer) -> Json:
        return messages_reply(answer)

    def frames(self, answer: Answer) -> Iterator[bytes]:
        return map(event_frame, messages_events(answer))

    @staticmethod
    def problem(status: int, message: str) -> Json:
        return anthropic_body(status, message)

    def problem_frame(self, status: int, message: str) -> bytes:
        return event_frame(self.problem(status, message))


APIS: dict[str, type[AgentApi]] = {
    "chat/completions": ChatApi,
    "completions": TextApi,
    "responses": ResponsesApi,
    "messages": MessagesApi,
}


def data_frame(event: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


def event_frame(event: Json) -> bytes:
    return b"event: %b\n%b" % (event["type"].encode(), data_frame(event))


def decoder_of(session: Session) -> Decode:
    """Text of single tokens, for logprobs."""
    tokenizer: Any = getattr(session.managed, "tokenizer", None)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids))

    return decode
