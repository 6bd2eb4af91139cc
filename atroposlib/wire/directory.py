"""Directory of inference servers: announcement of a server, and the list that the API keeps."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from atroposlib.wire.numbers import Int64


class Announcement(BaseModel):
    """An inference server, announced by its own node in a heartbeat of role inference."""

    model_config = ConfigDict(extra="forbid")
    url: str = Field(max_length=200, pattern=r"^https?://[^/\s?#@]+$")
    instance: str = Field(max_length=64)  # new at each start of the server
    started: float  # s since the epoch
    version: Int64 | None = None  # version of the weights that the server holds


class ServerEntry(Announcement):
    """A server whose last announcement is at most 15 s old."""

    name: str  # identity of the server, the same after a restart
    age_s: float
    takes_part: bool  # the trainer gave it the current weights; it may get rollouts
    held: bool = False  # an evaluation of the trainer keeps it at an earlier version

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_false(write(self), "held")


class ServerDirectory(BaseModel):
    """Reply to GET /servers."""

    instance: str  # id of the API process: new at each start
    complete: bool  # the API has run for long enough to have every living server
    servers: list[ServerEntry]

    def urls_to_add(self, known: Collection[str], *, any_weights: bool = False) -> list[str]:
        """URLs that are not ``known`` and take part, or hold ``any_weights``."""
        fit = [server.url for server in self.servers if any_weights or server.takes_part]
        return [url for url in dict.fromkeys(fit) if url not in known]

    def urls_to_rest(self, known: Collection[str]) -> list[str]:
        """URLs of ``known`` that an evaluation holds: no training rollout is sent there."""
        held = {server.url for server in self.servers if server.held}
        return [url for url in known if url in held]

    def urls_to_remove(self, known: Collection[str]) -> list[str]:
        """URLs of ``known`` whose entry ended; never all, because callers wait for a server."""
        listed = {server.url for server in self.servers}
        gone = [url for url in known if url not in listed] if self.complete else []
        return gone if len(gone) < len(known) else []


def without_false(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of a message without a flag that is not set: earlier versions refuse it."""
    return {key: value for key, value in fields.items() if key != name or value}
