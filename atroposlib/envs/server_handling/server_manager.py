"""Many servers as one: each call goes to the healthy server with the most room.

call -> split n into chunks -> pick a server per chunk -> one completion, renumbered
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from atroposlib.envs.server_handling.backends import ServerFactory, backend_for
from atroposlib.envs.server_handling.configs import (
    APIServerConfig,
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
    as_server_list,
)
from atroposlib.envs.server_handling.discovery import (
    LOCAL_URLS,
    generated_configs,
    slurm_urls,
)
from atroposlib.envs.server_handling.dummy_managed_server import (
    DummyManagedServer,
    require_dummy_allowed,
)
from atroposlib.envs.server_handling.generation import DEFAULT_MAX_TOKENS, Generation
from atroposlib.envs.server_handling.managed_server import ManagedServer
from atroposlib.envs.server_handling.openai_path import gather_or_cancel
from atroposlib.envs.server_handling.reasoning import ReasoningConfig
from atroposlib.envs.server_handling.routing import (
    chunk_sizes,
    join_choices,
    pick_index,
    session_on,
    split_of,
)
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.server_harness import ServerHarness
from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

__all__ = [
    "APIServer",
    "APIServerConfig",
    "ServerBaseline",
    "ServerManager",
    "ServerManagerConfig",
]

T = TypeVar("T")
PROXY_VARIABLE = "ATROPOS_PROXY_URL"


class ServerManager:
    """Routes calls to servers.

    Args:
        configs: a list of servers, one server, or a baseline whose addresses are generated.
        server_class: a backend class for all servers; the abstract default stands for the
            backend of each config's ``server_type``.
        slurm: take addresses from SLURM's variables, with ``configs[0]`` as template.
        testing: one :class:`ServerHarness` at ``servers[0]``.
        max_n_completions: larger n is split into concurrent requests.

    Raises:
        ConfigError: a config that cannot be used.
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
        _refuse_unavailable(proxy_url=proxy_url, use_proxy=use_proxy, tool_parser=tool_parser)
        if max_n_completions < 1:
            raise ConfigError("max_n_completions: at least 1")
        self.max_n_completions = max_n_completions
        self.reasoning_config = reasoning_config or ReasoningConfig()
        self.servers: list[APIServer]
        if testing:
            self.servers = [ServerHarness()]
        else:
            self.servers = [
                self._build(server_class, config) for config in _server_list(configs, slurm)
            ]

    def _build(self, server_class: type[APIServer], config: APIServerConfig) -> APIServer:
        factory: ServerFactory = server_class
        if server_class is APIServer:
            factory = backend_for(config.server_type)
        return factory(config, self.reasoning_config)

    # --- calls ----------------------------------------------------------------------

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """As :meth:`APIServer.chat_completion`, with any n."""
        parts = await self._in_chunks(kwargs, lambda server, kw: server.chat_completion(**kw))
        return join_choices(parts)

    async def completion(self, **kwargs: Any) -> Completion:
        """As :meth:`APIServer.completion`, with any n."""
        parts = await self._in_chunks(kwargs, lambda server, kw: server.completion(**kw))
        return join_choices(parts)

    async def tokens_and_logprobs_completion(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[Any]]:
        """As :meth:`APIServer.tokens_and_logprobs_completion`, with any n."""
        parts = await self._in_chunks(
            kwargs, lambda server, kw: server.tokens_and_logprobs_completion(**kw)
        )
        return (
            parts[0][0],
            [row for _, tokens, _, _ in parts for row in tokens],
            [row for _, _, logprobs, _ in parts for row in logprobs],
            [reason for _, _, _, reasons in parts for reason in reasons],
        )

    async def generate(
        self,
        input_ids: list[int],
        n: int = 1,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> list[Generation]:
        """As :meth:`APIServer.generate`, with any n."""
        kwargs.update(input_ids=input_ids, n=n, max_tokens=max_tokens, temperature=temperature)
        parts = await self._in_chunks(kwargs, lambda server, kw: server.generate(**kw))
        return [generation for part in parts for generation in part]

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """As :meth:`APIServer.get_logprobs`."""
        return await self._pick(split_of(kwargs)).get_logprobs(**kwargs)

    # --- sessions on one server -------------------------------------------------------

    @asynccontextmanager
    async def dedicated_server(self) -> AsyncIterator[APIServer]:
        """One server for the whole block.

        No slot is held in between: each call takes its own, so as many sessions as slots
        cannot lock one another out.
        """
        with session_on(self._pick("train")) as server:
            yield server

    @asynccontextmanager
    async def managed_server(
        self,
        tokenizer: Any = None,
        base_url: str | None = None,
        preserve_think_blocks: bool = False,
        track_tree: bool = False,
    ) -> AsyncIterator[ManagedServer | DummyManagedServer]:
        """A session that keeps the tokens, masks, logprobs and versions of what it samples.

        Args:
            tokenizer: that of the model; loaded by name when not given.
            base_url: a particular server of this manager.

        Raises:
            NotImplementedError: the server returns text only, and
                ATROPOS_ALLOW_DUMMY_MANAGED_SERVER does not allow made-up tokens.
        """
        chosen = self._pick("train") if base_url is None else self._at(base_url)
        managed: ManagedServer | DummyManagedServer
        if chosen.returns_tokens:
            managed = ManagedServer(
                chosen, tokenizer, track_tree, preserve_think_blocks=preserve_think_blocks
            )
        else:
            require_dummy_allowed(chosen.config.server_type)
            managed = DummyManagedServer(chosen, tokenizer, track_tree)
        with session_on(chosen):
            try:
                yield managed
            finally:
                managed.reset()

    # --- upkeep -----------------------------------------------------------------------

    async def update_weight(self, weight: float) -> None:
        """Open this share of every server's slots."""
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
        """What callers wait for besides slots, or None: for status displays."""
        waits = [server.health.waiting_on for server in self.servers]
        return next((wait for wait in waits if wait is not None), None)

    async def close(self) -> None:
        """Close every connection; call once, at the end."""
        for server in self.servers:
            await server.close()

    # --- routing ----------------------------------------------------------------------

    def _pick(self, split: str) -> APIServer:
        for server in self.servers:
            server.health.recheck()
        index = pick_index(
            [server.headroom(split) - server.sessions for server in self.servers],
            [server.server_healthy for server in self.servers],
        )
        return self.servers[index]

    def _at(self, base_url: str) -> APIServer:
        for server in self.servers:
            if server.base_url == base_url.rstrip("/"):
                return server
        known = ", ".join(server.base_url for server in self.servers)
        raise ConfigError(f"base_url: no server at {base_url}; there is {known}")

    async def _in_chunks(
        self, kwargs: dict[str, Any], call: Callable[[APIServer, dict[str, Any]], Awaitable[T]]
    ) -> list[T]:
        split = split_of(kwargs)
        n = kwargs.get("n")
        sizes = chunk_sizes(int(n or 1), self.max_n_completions)
        if len(sizes) == 1:
            return [await call(self._pick(split), dict(kwargs))]

        async def one(size: int) -> T:
            return await call(self._pick(split), {**kwargs, "n": size})

        return await gather_or_cancel(one(size) for size in sizes)


def _server_list(configs: ServerConfigs, slurm: bool) -> list[APIServerConfig]:
    servers = as_server_list(configs)
    if servers is not None:
        urls = slurm_urls() if slurm else []
        return generated_configs(servers[0], urls) if urls else servers
    if not isinstance(configs, ServerBaseline):
        raise ConfigError("server configs: a list of APIServerConfig or one ServerBaseline")
    return generated_configs(configs, slurm_urls() or LOCAL_URLS)


def _refuse_unavailable(**options: object) -> None:
    if os.environ.get(PROXY_VARIABLE):
        options[f"{PROXY_VARIABLE} (environment variable)"] = True
    for name, value in options.items():
        if value:
            raise ConfigError(
                f"{name}: managed-server proxies and tool calling are not part of this "
                "version; leave it unset"
            )
