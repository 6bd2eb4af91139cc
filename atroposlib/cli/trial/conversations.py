"""Messages and replies of each agent of a rollout, turn by turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
REWRITTEN = "(a prompt that does not go on from the turn before)"


@dataclass
class Conversations:
    """Calls of a rollout by the name of the endpoint; "" are ``model.chat`` and ``complete``."""

    calls: dict[str, list[tuple[list[Message], Message]]] = field(default_factory=dict)

    def hear(self, agent: str, sent: Sequence[Message], reply: Message) -> None:
        """Note a call; for ``Model.listener``."""
        self.calls.setdefault(agent, []).append(([*sent], reply))

    def messages(self, agent: str) -> list[Message]:
        """All messages once, in order; a note stands where a prompt was rewritten."""
        return list(_new_messages(self.calls.get(agent, ())))


def _new_messages(calls: Sequence[tuple[list[Message], Message]]) -> Iterator[Message]:
    before: list[Message] = []
    for sent, reply in calls:
        goes_on = [*map(_essence, sent[: len(before)])] == [*map(_essence, before)]
        if not goes_on:
            yield {"role": "note", "content": REWRITTEN}
        yield from sent[len(before) if goes_on else 0 :]
        yield reply
        before = [*sent, reply]


def _essence(message: Message) -> tuple[Any, Any, Any]:
    """The fields by which two messages are equal: clients add fields to a reply in a prompt."""
    calls = message.get("tool_calls") or ()
    names = [call.get("function") for call in calls if isinstance(call, Mapping)]
    return message.get("role"), message.get("content") or "", names
