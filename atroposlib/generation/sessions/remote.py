"""Client of a managed session in a proxy process.

session = await create_proxy_session("http://localhost:9100", tool_parser="hermes")
completion = await session.chat_completion(messages=[...], max_tokens=64)
node = session.nodes_for(completion)[0]
await session.cleanup()
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from atroposlib.errors import (
    InferenceRefused,
    InferenceUnavailable,
    TokensMissing,
    UnknownSession,
)
from atroposlib.generation.chat.template import plain_message
from atroposlib.generation.engines.health import BACKOFF, MAX_ATTEMPTS
from atroposlib.generation.engines.http import HttpClient, read_reply
from atroposlib.generation.engines.returned import note_returned
from atroposlib.generation.sampling.reply_form import ReplyPart, checked_choices
from atroposlib.generation.sessions.recording import record_nodes
from atroposlib.generation.sessions.sequences import SequenceNode
from atroposlib.utils.backoff import with_jitter

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

TOKEN_VARIABLE = "ATROPOS_PROXY_TOKEN"
TIMEOUT_S = 1200.0
_NOT_SENT = frozenset({"extra_body", "extra_headers", "timeout", "stream"})


class ProxyManagedServer:
    """Samples through a session of a proxy, which gets every argument of a call.

    ``base_url`` is the inference server behind the proxy, ``api_key`` the key of the session,
    if the proxy requires it. :func:`create_proxy_session` creates a session.
    """

    def __init__(
        self,
        proxy_url: str,
        session_uuid: str,
        model_name: str = "unknown",
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.proxy_url = proxy_url.rstrip("/")
        self.session_uuid = session_uuid
        self.model_name = model_name
        self.base_url = base_url
        self.api_key = api_key
        self._http = _ProxyClient(timeout_s, api_key)
        self._nodes: list[SequenceNode] = []
        self._nodes_of: dict[str, list[SequenceNode]] = {}
        self._last_fetch = 0  # number of the newest fetch of the state
        self._applied_fetch = 0  # number of the newest fetch whose answer is in _nodes
        self._reset_due = False

    async def __aenter__(self) -> ProxyManagedServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    # --- calls ----------------------------------------------------------------------

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Chat completion, see ``ManagedServer.chat_completion``. Raises UnknownSession.

        An attempt without a response is repeated with the same idempotency key, so the
        session records each completion once.
        """
        from atroposlib.generation.sessions.replies import read_chat_completion

        if self._reset_due:
            url = f"{self.proxy_url}/sessions/{self.session_uuid}/reset"
            await self._http.ask("POST", url, {})
            self._reset_due = False
        body = {k: v for k, v in kwargs.items() if k not in _NOT_SENT and v is not None}
        body.update(kwargs.get("extra_body") or {})
        body["messages"] = [plain_message(message) for message in kwargs["messages"]]
        body = {"model": self.model_name, **body, "return_nodes": True}
        url = f"{self.get_url()}/chat/completions"
        payload = await self._http.ask("POST", url, body)
        nodes = payload.pop("nodes", None)
        completion = read_chat_completion(
            checked_choices(ReplyPart(payload, url), "chat.completion")
        )
        note_returned(None, str(kwargs.get("split") or "train"), completion)
        if nodes is not None:
            self._nodes_of[completion.id] = read_nodes(ReplyPart(nodes, url, "nodes"))
            record_nodes(self._nodes_of[completion.id])
        await self.fetch_state()
        return completion

    async def completion(self, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("a proxied session has chat_completion only")

    async def get_logprobs(self, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("ProxyManagedServer does not implement get_logprobs")

    # --- what was sampled -------------------------------------------------------------

    def nodes_for(self, completion: ChatCompletion) -> list[SequenceNode]:
        """The node of each choice at the return of the call. Raises TokensMissing without nodes."""
        if completion.id not in self._nodes_of:
            raise TokensMissing(
                f"the proxy at {self.proxy_url} did not return the nodes of "
                f"{completion.id}; use get_state(), with one call at a time"
            )
        return list(self._nodes_of[completion.id])

    def get_state(self) -> dict[str, Any]:
        """``{"nodes": [...]}`` as of the last call that returned."""
        return {"nodes": list(self._nodes)}

    async def fetch_state(self) -> dict[str, Any]:
        """Fetch the nodes from the proxy. Every call does so."""
        self._last_fetch += 1
        number = self._last_fetch
        url = f"{self.proxy_url}/{self.session_uuid}/nodes"
        payload = ReplyPart(await self._http.ask("GET", url), url)
        if number > self._applied_fetch:  # a newer fetch may have returned first
            self._applied_fetch = number
            self._nodes = read_nodes(payload.field("nodes"))
        return self.get_state()

    def reset(self) -> None:
        """Drop every sequence: here at once, in the proxy before the next call."""
        self._nodes, self._nodes_of = [], {}
        self._applied_fetch = self._last_fetch
        self._reset_due = True

    async def cleanup(self) -> None:
        """Delete the session, if it still exists, and close the connections."""
        try:
            with suppress(UnknownSession):
                await self._http.ask("DELETE", f"{self.proxy_url}/{self.session_uuid}")
        finally:
            await self._http.aclose()

    def get_url(self) -> str:
        """The ``base_url`` for an OpenAI client."""
        return f"{self.proxy_url}/{self.session_uuid}/v1"


async def create_proxy_session(
    proxy_url: str,
    base_url: str | None = None,
    tool_parser: str = "hermes",
    track_tree: bool = False,
    model_name: str = "unknown",
    preserve_think_blocks: bool = False,
    split: str = "train",
    timeout_s: float = TIMEOUT_S,
) -> ProxyManagedServer:
    """Create a session in a proxy. The admin token is read from ATROPOS_PROXY_TOKEN.

    ``base_url`` is an inference server of the proxy; None lets the proxy choose. Raises
    InferenceUnavailable, or InferenceRefused, for example 401 for a missing token.
    """
    root = proxy_url.rstrip("/")
    http = _ProxyClient(timeout_s, os.environ.get(TOKEN_VARIABLE))
    body = {
        "tool_parser": tool_parser,
        "track_tree": track_tree,
        "base_url": base_url,
        "preserve_think_blocks": preserve_think_blocks,
        "split": split,
        "describe_tools": None,  # the caller describes tools, as with a session in its process
    }
    try:
        opened = await http.ask("POST", f"{root}/sessions/create", body)
    finally:
        await http.aclose()
    reply = ReplyPart(opened, f"{root}/sessions/create")
    return ProxyManagedServer(
        root,
        reply.field("uuid").text(),
        reply.field("model_name").optional_text() or model_name,
        reply.field("base_url").optional_text(),
        reply.field("api_key").optional_text(),
        timeout_s,
    )


def read_nodes(nodes: ReplyPart) -> list[SequenceNode]:
    """The nodes of a session, checked: ids, logprobs and masks of equal lengths."""
    return [_read_node(node) for node in nodes.require().parts()]


def _read_node(part: ReplyPart) -> SequenceNode:
    with part.reading("a node of a session"):
        node = SequenceNode(**part.mapping())
    part.field("tokens").token_ids()
    lengths = {len(node.tokens), len(node.masked_tokens), len(node.logprobs)}
    if len(lengths) != 1:
        raise part.foreign("a node with lists of equal lengths")
    return node


class _ProxyClient(HttpClient):
    """Retries only requests without a response: the proxy retries its servers."""

    async def ask(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The payload of the response. All attempts of a POST have the same idempotency key."""
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else None
        failed = 0
        while True:
            try:
                response = await self.send(method, url, json=body, headers=headers)
                break
            except InferenceUnavailable:
                failed += 1
                if failed == MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(with_jitter(BACKOFF.pause_s(failed)))
        try:
            return dict(ReplyPart(read_reply(response).payload, url).mapping())
        except InferenceRefused as refusal:
            if refusal.status_code == 404 and "no session" in refusal.detail:
                raise UnknownSession(refusal.detail) from refusal
            raise
