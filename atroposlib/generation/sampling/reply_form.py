"""Form of a server's replies: each part with its place, and errors that name it.

    ReplyPart(payload, url).field("choices").parts() -> choices[0], choices[1] ...
    checked_choices(ReplyPart)                       -> the payload of a text route, safe to read

A value of another type raises ForeignReply with the address, the route and the field. Fields
that no caller needs, such as a foreign ``usage``, are left out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ForeignReply, InferenceUnavailable, TokensMissing
from atroposlib.generation.sampling.generation import finish_reason_text

MAX_TOKEN_ID = 2**31 - 1  # limit of every tokenizer
MAX_NUMBER = 3.4e38  # rows hold float32
MAX_COUNT = 2**53  # largest number of tokens that JSON carries exactly
FOREIGN_VALUES = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
READ_ERRORS = (TokensMissing, *FOREIGN_VALUES)
REASONINGS = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class ReplyPart:
    """A value of a reply; ``name`` is its place, like ``choices[0].message``."""

    value: Any
    where: str  # address and route
    name: str = ""  # empty: the whole reply

    def field(self, name: str) -> ReplyPart:
        """A field of an object; its value is None if absent."""
        return ReplyPart(
            self.mapping().get(name), self.where, f"{self.name}.{name}".lstrip(".")
        )

    def mapping(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self.foreign("an object")
        return self.value

    def parts(self) -> list[ReplyPart]:
        """The entries of a list."""
        return [
            ReplyPart(value, self.where, f"{self.name}[{i}]")
            for i, value in enumerate(self.entries())
        ]

    def entries(self) -> list[Any]:
        if not isinstance(self.value, list):
            raise self.foreign("a list")
        return self.value

    def require(self) -> ReplyPart:
        """Itself; TokensMissing for null."""
        if self.value is None:
            raise TokensMissing(
                f"{self.where}: the response has no {self.name}, so it cannot be trained on"
            )
        return self

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.foreign("a text")
        return self.value

    def optional_text(self) -> str | None:
        return None if self.value is None else self.text()

    def token_ids(self) -> list[int]:
        """The token ids (T,) of a list."""
        ids = self.entries()
        for t, token in enumerate(ids):
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise ReplyPart(token, self.where, f"{self.name}[{t}]").foreign("a token id")
        return list(ids)

    def numbers(self) -> list[float]:
        """The finite numbers (T,) of a list."""
        if all(type(value) is float and abs(value) < MAX_NUMBER for value in self.entries()):
            return list(self.entries())
        return [part.number() for part in self.parts()]

    def number(self) -> float:
        """A finite number, also in quotes."""
        with self.reading("a finite number"):
            number = float(self.value)
            if abs(number) < MAX_NUMBER and not isinstance(self.value, bool):
                return number
        raise self.foreign("a finite number")

    @contextmanager
    def reading(self, wanted: str) -> Iterator[None]:
        """Raise ForeignReply for this part where the block cannot read its value."""
        try:
            yield
        except FOREIGN_VALUES as error:
            raise self.foreign(wanted) from error

    def foreign(self, wanted: str) -> ForeignReply:
        return ForeignReply(self.where, self.name or "its body", shape_of(self.value), wanted)


def shape_of(value: Any) -> str:
    """What a JSON value is, without its content."""
    if value is None:
        return "absent or null"
    if isinstance(value, bool):
        return str(value).lower()
    shapes = ((str, "a text"), ((int, float), "a number"), (list, "a list"))
    named = (name for kind, name in shapes if isinstance(value, kind))
    return next(named, "an object")


@contextmanager
def expected_form(where: str) -> Iterator[None]:
    """Name the address in errors of reading a reply, and raise ForeignReply for untyped ones."""
    try:
        yield
    except READ_ERRORS as error:
        raise with_address(where, error) from error


def with_address(where: str, error: Exception) -> TokensMissing:
    """The error of READ_ERRORS as a typed one that names the address ``where``."""
    if isinstance(error, TokensMissing):
        return error if where in str(error) else TokensMissing(f"{where}: {error}")
    shape = f"read by {type(error).__name__}: {error}"
    return ForeignReply(where, "a part of its body", shape, "of the expected form")


def checked_choices(reply: ReplyPart, kind: str) -> dict[str, Any]:
    """The payload of a text route with choices that can be read.

    ``kind`` is the route's ``object``: chat.completion or text_completion. Raises
    InferenceUnavailable without choices (gateways report an overload in this form), ForeignReply
    for choices of another form.
    """
    if not isinstance(reply.value, Mapping) or not reply.value.get("choices"):
        raise InferenceUnavailable(
            f"{reply.where}: the response has no choices{_error_text(reply.value)}"
        )
    choices = reply.field("choices").parts()
    is_chat = kind == "chat.completion"
    read = [_checked_choice(choice, i, is_chat) for i, choice in enumerate(choices)]
    payload = {k: v for k, v in reply.value.items() if not k.startswith("_")}
    named = payload.get("id")
    return {
        **payload,
        "id": named if isinstance(named, str) and named else f"reply-{uuid.uuid4()}",
        "choices": read,
        "usage": _usage(payload.get("usage")),
    }


def _error_text(payload: Any) -> str:
    """The error that a body of status 200 holds, as gateways send it."""
    error = payload.get("error") if isinstance(payload, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return f": {message[:200]}" if isinstance(message, str) else ""


def _checked_choice(choice: ReplyPart, i: int, is_chat: bool) -> dict[str, Any]:
    fields = {k: v for k, v in choice.mapping().items() if not k.startswith("_")}
    reason = choice.field("finish_reason")
    if isinstance(reason.value, Mapping):  # SGLang's native form
        fields["finish_reason"] = finish_reason_text(reason.value)
    else:
        reason.optional_text()
    if type(fields.get("index")) is not int:
        fields["index"] = i
    if is_chat:
        fields["message"] = _checked_message(choice.field("message"))
    else:
        choice.field("text").text()
    _check_logprobs(choice.field("logprobs"))
    return fields


def _checked_message(message: ReplyPart) -> dict[str, Any]:
    fields = {k: v for k, v in message.mapping().items() if not k.startswith("_")}
    message.field("content").optional_text()
    for name in REASONINGS:
        message.field(name).optional_text()
    fields["role"] = message.field("role").optional_text() or "assistant"
    calls = message.field("tool_calls")
    if calls.value is not None:
        fields["tool_calls"] = [_checked_call(call) for call in calls.parts()]
    return fields


def _checked_call(call: ReplyPart) -> dict[str, Any]:
    """A tool call; arguments that a server sends as an object become OpenAI's text."""
    fields = dict(call.mapping())
    if call.field("type").value == "custom":
        return fields
    function = call.field("function")
    function.field("name").text()
    arguments = function.field("arguments")
    if arguments.value is None or isinstance(arguments.value, Mapping):
        written = json.dumps(arguments.value or {}, ensure_ascii=False)
        fields["function"] = {**function.mapping(), "arguments": written}
    else:
        arguments.text()
    return fields


def _check_logprobs(logprobs: ReplyPart) -> None:
    """Check the lists of either form: of chats ``content``, of texts ``token_logprobs``."""
    if logprobs.value is None:
        return
    if logprobs.field("content").value is not None:
        for entry in logprobs.field("content").parts():
            entry.field("logprob").number()
    if logprobs.field("token_logprobs").value is not None:
        for value in logprobs.field("token_logprobs").parts():
            if value.value is not None:  # the first token of an echoed prompt
                value.number()


def _usage(usage: Any) -> Mapping[str, Any] | None:
    """Counts of tokens; None where a count is no count."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    if not isinstance(usage, Mapping):
        return None
    counts = [usage.get(name) or 0 for name in names]
    known = all(type(count) is int and 0 <= count <= MAX_COUNT for count in counts)
    return usage if known else None


def topk_rows(raw: Any) -> list[dict[int, float]]:
    """Logprob by token id, for each position; {} for unreported positions.

    ``raw`` is [position] or [sequence][position] of a dict, a list of dicts, or null; a value
    is a number or {"logprob": number}.
    """
    if raw is None:
        raise TokensMissing("the backend returned no prompt_logprobs")
    positions = raw
    if len(raw) == 1 and isinstance(raw[0], list) and _is_nested(raw[0]):
        positions = raw[0]
    rows = []
    for position in positions:
        entries = position if isinstance(position, list) else [position]
        pairs = [pair for entry in entries for pair in (entry or {}).items()]
        rows.append({int(token): logprob_number(value) for token, value in pairs})
    return rows


def _is_nested(row: list[Any]) -> bool:
    """Whether ``row`` is the position list of [sequence][position], not a position."""
    return any(entry is None or isinstance(entry, list) for entry in row) or len(row) > 1


def logprob_number(value: Any) -> float:
    return float(value["logprob"] if isinstance(value, Mapping) else value)
