"""Proxy in this process: an environment opens sessions for agents and gets rows.

    async with serving_proxy(manager, tokenizer, "model") as proxy:
        async with await proxy.open_session() as session:
            await run_agent(base_url=session.base_url, api_key=session.api_key)
            rows = session.rows()

The server runs on the event loop on which it is opened. An agent that blocks (for example with
``openai.OpenAI``) belongs in a thread: ``await asyncio.to_thread(agent, ...)``.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.proxy import ProxyLimits
from atroposlib.generation.proxy.apis.chat import ChatApi
from atroposlib.generation.proxy.apis.idempotency import CallIdentity
from atroposlib.generation.proxy.main import create_app
from atroposlib.generation.proxy.sample_tree import SessionRow
from atroposlib.generation.proxy.session import Listener, ProxySession, SessionSettings
from atroposlib.generation.proxy.sessions import Servers, Sessions
from atroposlib.generation.sessions.dummy import DummyManagedServer
from atroposlib.generation.sessions.recording import record_nodes
from atroposlib.generation.sessions.sequences import SequenceNode

LOOPBACK = "127.0.0.1"
BACKLOG = 2048
SHUTDOWN_TIMEOUT_S = 5.0


class AgentSession:
    """Session of an agent. Use it as an async context manager, or ``close`` it."""

    def __init__(self, sessions: Sessions, session: ProxySession, url: str) -> None:
        self._sessions = sessions
        self._session = session
        self.uuid = session.uuid
        self.api_key = session.api_key
        self.url = f"{url}/{session.uuid}"  # base_url of Anthropic's clients
        self.base_url = f"{self.url}/v1"  # base_url of OpenAI's clients
        self.version: int | None = (
            None  # earlier version that answers; None: the present version
        )

    async def __aenter__(self) -> AgentSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def chat(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> str:
        """Text of a reply, sampled in this process without HTTP; parameters as for OpenAI."""
        request = ChatApi(self._session, {"messages": list(messages), **sampling}).request
        call = self._session.call(request, CallIdentity(b""))
        response = await call.task
        call.mark_delivered()
        return response.choices[0].content or ""

    async def nodes(self) -> list[SequenceNode]:
        """Sequences of the session, in the shape of ``ManagedServer.get_state()``."""
        nodes = self._session.nodes()
        record_nodes(nodes)
        return nodes

    def rows(self, discount: float = 1.0) -> list[SessionRow]:
        """Rows of the session, see :meth:`ProxySession.rows`.

        ``groups.from_nodes(rows, [row.reward for row in rows])`` makes a group.
        """
        rows = self._session.rows(discount)
        record_nodes(rows)
        return rows

    def reward(self, reward: float, completion_id: str | None = None) -> None:
        """Set a reward, by default of the whole session; see :meth:`ProxySession.reward`."""
        self._session.reward(reward, completion_id)

    @property
    def is_rewarded(self) -> bool:
        """Whether the session or one of its completions was rewarded."""
        return self._session.is_rewarded

    def score(self, otherwise: float) -> float:
        """Score of the session, see :meth:`ProxySession.score`."""
        return self._session.score(otherwise)

    @property
    def is_context_full(self) -> bool:
        """Whether a call did not fit into the context of the model."""
        return self._session.is_context_full

    def sample_from(self, session: Any) -> None:
        """Take the replies of ``session``, which has OpenAI's two calls, in place of a server's."""
        self._session.sample_from(DummyManagedServer(session))

    def listen(self, listener: Listener) -> None:
        """Give ``listener`` the messages and the reply of each call from now on."""
        self._session.listen(listener)

    async def close(self) -> None:
        """Cancel the running calls and delete the session."""
        await self._sessions.close(self._session)


@dataclass(repr=False)
class RunningProxy:
    """Running proxy that listens on ``url``."""

    _sessions: Sessions
    url: str
    admin_token: str  # token of calls over HTTP; open_session needs no token

    async def open_session(
        self,
        tool_parser: str | None = "hermes",
        *,
        track_tree: bool = False,
        base_url: str | None = None,
        preserve_think_blocks: bool = False,
        split: str = "train",
        sampling: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        describe_tools: bool = False,
        server: APIServer | None = None,
    ) -> AgentSession:
        """Open a session for an agent. Raises InferenceRefused or ConfigError.

        Args:
            base_url: a particular inference server.
            server: a client that is none of the manager's, for example of an earlier version.
            split: slots that its calls take, "train" or "eval".
            sampling: parameters that override the agent's, for example
                {"temperature": 1.0, "top_p": 1.0}.
            max_tokens: most tokens of a reply; the agent may ask for fewer.
            stop: stop strings in addition to the agent's.
            describe_tools: describe tools in a system message if the chat template ignores
                tools, which otherwise is an error (400).
        """
        settings = SessionSettings(
            tool_parser=tool_parser,
            track_tree=track_tree,
            preserve_think_blocks=preserve_think_blocks,
            split=split,
            sampling=dict(sampling or {}),
            max_tokens=max_tokens,
            stop=list(stop),
            describe_tools=describe_tools,
        )
        session = await self._sessions.open(settings, base_url, server)
        return AgentSession(self._sessions, session, self.url)


@asynccontextmanager
async def serving_proxy(
    server_manager: Servers,
    tokenizer: Any = None,
    model_name: str = "unknown",
    limits: ProxyLimits = ProxyLimits(),
) -> AsyncIterator[RunningProxy]:
    """Serve the proxy on a free port of 127.0.0.1 for the time of the block.

    Agents reach their session with its API key. All other routes need an admin token,
    which is drawn here and kept in this process. Raises ConfigError if the server did not
    start.
    """
    admin_token = secrets.token_urlsafe(32)
    app = create_app(
        server_manager, tokenizer, model_name, admin_token=admin_token, limits=limits
    )
    with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listener:
        async with _serving(app, listener):
            url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            yield RunningProxy(app.state.sessions, url, admin_token)


@asynccontextmanager
async def _serving(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    import uvicorn

    from atroposlib.utils.http.gate import require_gate

    ready = asyncio.Event()

    class Server(uvicorn.Server):
        """Leaves signals to the environment and sets ``ready`` when it listens."""

        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    config = uvicorn.Config(
        require_gate(app),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=int(SHUTDOWN_TIMEOUT_S),
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="agent proxy")
    started = asyncio.create_task(ready.wait())
    await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if serving.done():
        serving.result()
        raise ConfigError("the agent proxy did not start; see its log")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


__all__ = ["AgentSession", "RunningProxy", "SessionRow", "serving_proxy"]
