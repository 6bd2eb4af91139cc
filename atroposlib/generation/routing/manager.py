"""Facade of several servers: routed calls, managed sessions, metrics."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import (
    LOCAL_URLS,
    APIServerConfig,
    ServerBaseline,
    ServerConfigs,
    as_server_list,
    directory_template,
    generated_configs,
    slurm_urls,
)
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.harness import ServerHarness
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.trl import TrlVllmServer
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.generation.routing.calls import RoutedCalls, sticky_session
from atroposlib.generation.routing.failover import (
    FailoverRoute,
    free_slots,
    pick_server,
    returns_tokens,
    token_servers,
)
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.generation.sessions.dummy import DummyManagedServer, require_dummy_allowed
from atroposlib.generation.sessions.managed import ManagedServer, managed_over
from atroposlib.wire.directory import ServerDirectory
from atroposlib.wire.status import ServerState

if TYPE_CHECKING:
    from atroposlib.generation.sessions.remote import ProxyManagedServer

logger = logging.getLogger(__name__)
SLOT_POLL_S = 0.05
PROXY_VARIABLE = "ATROPOS_PROXY_URL"


class ServerManager(RoutedCalls):
    """Routes each call to the healthy server with most free slots.

    Args:
        configs: a list of servers, a single server, or a baseline whose addresses are
            generated.
        server_class: backend class of all servers. The abstract default selects the backend
            by the ``server_type`` of each config.
        slurm: take addresses from SLURM's variables, with ``configs[0]`` as template.
        testing: a :class:`ServerHarness` at ``servers[0]``.
        max_n_completions: larger n is split into concurrent requests.
        proxy_url: address of the proxy that keeps managed sessions; ATROPOS_PROXY_URL if
            None. Either sets ``use_proxy``, which can be set to False later.
        tool_parser: name of the parser of tool calls in managed sessions, for example hermes.

    Raises ConfigError: a config that cannot be used.
    """

    def __init__(
        self,
        configs: ServerConfigs,
        server_class: type[APIServer] = APIServer,
        slurm: bool = False,
        testing: bool = False,
        max_n_completions: int = 8,
        reasoning_config: ReasoningConfig | None = None,
        proxy_url: str | None = None,
        use_proxy: bool = False,
        tool_parser: str | None = None,
    ) -> None:
        if max_n_completions < 1:
            raise ConfigError("max_n_completions: at least 1")
        self.max_n_completions = max_n_completions
        self.proxy_url = proxy_url or _proxy_from_environment()
        self.use_proxy = use_proxy or self.proxy_url is not None
        self.tool_parser = tool_parser
        self.reasoning_config = reasoning_config or ReasoningConfig()
        self._server_class = server_class
        self._version: int | None = None
        self._weight = 1.0
        self._resting: dict[str, APIServer] = {}  # held servers, whose calls still run
        listed = [] if testing else _server_list(configs, slurm)
        #: Settings of the servers that :meth:`follow` takes; None: the servers come from
        #: ``configs``.
        self.template = directory_template(listed)
        # Changed in place: routes of running calls hold this list.
        self.servers: list[APIServer] = [ServerHarness()] if testing else []
        if self.template is None:
            self.servers += map(self._connect, listed)

    def _connect(self, config: APIServerConfig) -> APIServer:
        by_type = self._server_class is APIServer
        backend = backend_for(config.server_type) if by_type else self._server_class
        return backend(config, self.reasoning_config)

    def _connect_at(self, url: str) -> APIServer:
        assert self.template is not None  # the servers come from the directory
        return self._connect(self.template.model_copy(update={"base_url": f"{url}/v1"}))

    async def follow(self, directory: ServerDirectory) -> list[APIServer]:
        """Take part with servers that joined the directory; leave out servers that left it.

        Returns the new servers. Calls that run on a server that left fail over to a different
        server. Calls that run on a held server end there; further calls go elsewhere.
        """
        if self.template is None:
            return []
        known = [server._parts.root_url for server in self.servers]
        joined = directory.urls_to_add(known)
        new = [
            self._resting.pop(url) if url in self._resting else self._connect_at(url)
            for url in joined
        ]
        for server in new:
            server.announced_version = self._version
            await server.update_weight(self._weight)
        left = directory.urls_to_remove([*known, *joined])
        held = directory.urls_to_rest(known)
        by_url = {server._parts.root_url: server for server in self.servers}
        self._resting.update({url: by_url.pop(url) for url in held})
        gone = [by_url.pop(url) for url in left if url in by_url]
        self.servers[:] = [*by_url.values(), *new]
        for server in gone:
            server._parts.health.mark_suspect()
            await server.close()  # ends requests that would wait for a node that is gone
        moves = {"takes part": joined, "has left the directory": left, "is held": held}
        for what, urls in moves.items():
            for url in urls:
                logger.info("inference server %s %s", url, what)
        return new

    def announce_version(self, version: int | None) -> None:
        """Set the policy version that the rollout API reports as published.

        Tokens without a version from their server get the value at the time of the request.
        """
        self._version = version
        for server in self.servers:
            server.announced_version = version

    # --- sessions on a server -------------------------------------------------------

    @asynccontextmanager
    async def dedicated_server(self) -> AsyncIterator[APIServer]:
        """A single server for the whole block.

        No slot is held between its calls, so as many sessions as slots cannot deadlock.
        """
        server = pick_server(self.servers, "train")
        with sticky_session([server], server, self.max_n_completions):  # counts it as used
            yield server

    @asynccontextmanager
    async def managed_server(
        self,
        tokenizer: Any = None,
        base_url: str | None = None,
        preserve_think_blocks: bool = False,
        track_tree: bool = False,
    ) -> AsyncIterator[ManagedServer | DummyManagedServer | ProxyManagedServer]:
        """A session that keeps the tokens, masks, logprobs and versions of its samples.

        The session stays on a single server, whose KV cache has its prefix, and fails over to
        another server unless ``base_url`` names the server. Without a ``tokenizer`` the
        model's is loaded.

        Raises NotImplementedError if the server returns text only and
        ATROPOS_ALLOW_DUMMY_MANAGED_SERVER does not allow placeholder tokens.
        """
        if self.use_proxy:
            session = self._proxy_session(base_url, track_tree, preserve_think_blocks)
            async with await session as remote:
                yield remote
            return
        servers = (
            token_servers(self.servers) if base_url is None else [self._server_at(base_url)]
        )
        chosen = pick_server(servers, "train")
        if not returns_tokens(chosen):
            require_dummy_allowed(chosen.config.server_type)
        with sticky_session(servers, chosen, self.max_n_completions) as server:
            managed = managed_over(
                server, tokenizer, track_tree, self.tool_parser, preserve_think_blocks
            )
            try:
                yield managed
            finally:
                managed.reset()

    async def _proxy_session(
        self, base_url: str | None, track_tree: bool, preserve_think_blocks: bool
    ) -> ProxyManagedServer:
        from atroposlib.generation.sessions.remote import create_proxy_session

        if not self.proxy_url:
            raise ConfigError("use_proxy: there is no proxy_url; set it, or use_proxy false")
        return await create_proxy_session(
            self.proxy_url,
            base_url=base_url,
            tool_parser=self.tool_parser or "hermes",
            track_tree=track_tree,
            model_name=self.servers[0].config.model_name,
            preserve_think_blocks=preserve_think_blocks,
        )

    async def wait_for_sem(self, is_training: bool = True) -> None:
        """Return when a server has a free slot for calls of training, or of evaluation."""
        split = "train" if is_training else "eval"
        while not any(free_slots(server, split) > 0 for server in self.servers):
            await asyncio.sleep(SLOT_POLL_S)

    # --- upkeep -----------------------------------------------------------------------

    async def update_weight(self, weight: float) -> None:
        """Limit every server to this share of its slots."""
        self._weight = weight
        for server in self.servers:
            await server.update_weight(weight)

    async def wandb_metrics(
        self, metrics_dict: dict[str, Any] | None = None, server_name: str | None = None
    ) -> dict[str, Any]:
        """Timings of every server, as ``server/server_<i>_...``."""
        metrics = metrics_dict if metrics_dict is not None else {}
        for i, server in enumerate(self.servers):
            await server.wandb_metrics(metrics, f"{server_name or 'server'}_{i}")
        return metrics

    @property
    def waiting_on(self) -> str | None:
        """Reason why callers wait, apart from slots, for status displays; None if none."""
        waits = [server._parts.health.waiting_on for server in self.servers]
        return next((wait for wait in waits if wait is not None), None)

    async def states(self) -> list[ServerState]:
        """Requests and silence of every server, for heartbeats."""
        own = [engine for engine in self.servers if isinstance(engine, APIServer)]
        return list(await asyncio.gather(*(server.state() for server in own)))

    async def close(self) -> None:
        """Close every connection; call once, at the end."""
        for server in [*self.servers, *self._resting.values()]:
            await server.close()

    # --- routing ----------------------------------------------------------------------

    def _route(self, tokens: bool = False) -> FailoverRoute:
        return FailoverRoute(token_servers(self.servers) if tokens else self.servers)

    def _server_at(self, base_url: str) -> APIServer:
        for server in self.servers:
            if server._parts.base_url == base_url.rstrip("/"):
                return server
        known = ", ".join(server._parts.base_url for server in self.servers)
        raise ConfigError(f"base_url: no server at {base_url}; there is {known}")


def _server_list(configs: ServerConfigs, slurm: bool) -> list[APIServerConfig]:
    servers = as_server_list(configs)
    if servers is None:
        return generated_configs(cast(ServerBaseline, configs), slurm_urls() or LOCAL_URLS)
    if not slurm:
        return servers
    urls = slurm_urls()
    if not urls:
        logger.warning("slurm: not in a job of several nodes; using the servers as given")
    return generated_configs(servers[0], urls) if urls else servers


def _proxy_from_environment() -> str | None:
    """ATROPOS_PROXY_URL, with a warning: it affects every environment of the shell."""
    url = os.environ.get(PROXY_VARIABLE)
    if url:
        logger.warning(
            "%s is set: managed sessions go to the proxy at %s", PROXY_VARIABLE, url
        )
    return url or None


ServerFactory = Callable[[APIServerConfig, ReasoningConfig], APIServer]

BACKENDS: dict[str, ServerFactory] = {
    "openai": OpenAIServer,
    "vllm": VLLMServer,
    "sglang": SGLangServer,
    "trl": TrlVllmServer,
}


def backend_for(server_type: str) -> ServerFactory:
    """The client class of a ``server_type``. A manager may mix several types."""
    if server_type not in BACKENDS:
        raise ConfigError(
            f"server_type: {server_type} has no client here; one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[server_type]
