"""Creation of an environment from its merged settings, with names from its servers.

The names of model and tokenizer come from the inference server where flags, YAML and
config_init give no names. Names that are given are compared with the server. The last resort
is the class default.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from atroposlib.envs.runtime.env_runtime import ReadyServers, runtime_class
from atroposlib.envs.runtime.hooks import EnvHooks
from atroposlib.envs.settings.config import OPENAI_NAMESPACE, SLOT, BaseEnvConfig
from atroposlib.envs.settings.readable import readable
from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.generation.configs import DIRECTORY, ServerConfigs, ServerManagerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.http import UNNAMED
from atroposlib.generation.engines.openai import OpenAICompatibleServer, TokenServer
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.trackers import require_tracker
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommandSettings:
    """The merged settings of a command line."""

    mode: str
    env: BaseEnvConfig
    servers: ServerConfigs
    manager: ServerManagerConfig
    # namespace -> the servers behind it; None: optional and not configured.
    more_servers: dict[str, ServerConfigs | None] = field(default_factory=dict)


def make_named_env(
    env_cls: type[EnvHooks], settings: CommandSettings, *, must_answer: bool = False
) -> EnvHooks:
    """Create the environment; unset names of model and tokenizer come from its servers.

    ``must_answer``: an absent server is an error.
    """
    for name in readable(settings.env).trackers:  # checked before a wait for a server
        require_tracker(name)
    server = server_manager(env_cls, settings)
    if server.template is not None:
        _require_names(settings)

    async def read_settings() -> tuple[CommandSettings, Any]:
        try:
            if must_answer:
                await require_answers(server.servers)
            config, tokenizer = await named_by_servers(settings.env, server.servers)
            more = await _named_more(env_cls, settings)
            return replace(settings, env=config, more_servers=more), tokenizer
        finally:
            await server.close()

    loop = asyncio.new_event_loop()  # asyncio.run would take the constructor's loop away
    try:
        known, tokenizer = loop.run_until_complete(read_settings())
    finally:
        loop.close()
    # Outside the event loop: constructors of older environments require that.
    return make_env(env_cls, known, server, tokenizer)


def _require_names(settings: CommandSettings) -> None:
    """Raise ConfigError for a directory of servers where no server can be asked for names."""
    if settings.mode != "serve":
        raise ConfigError(
            f"base_url {DIRECTORY} goes with serve; name a server for {settings.mode}"
        )
    if "tokenizer_name" not in settings.env.model_fields_set:
        raise ConfigError(f"base_url {DIRECTORY} needs --env.tokenizer_name")


async def _named_more(
    env_cls: type[EnvHooks], settings: CommandSettings
) -> dict[str, ServerConfigs | None]:
    """The further servers, for example a teacher's, with the names of their models."""
    named = dict(settings.more_servers)
    for namespace, more in runtime_class(env_cls).more_servers(env_cls).items():
        configs = named[namespace]
        if configs is None or not (more.switch and getattr(settings.env, more.switch)):
            continue
        manager = ServerManager(configs)
        if manager.template is not None:
            raise ConfigError(f"--{namespace}.base_url {DIRECTORY}: of the trained model only")
        try:
            unnamed = any(server.config.model_name == UNNAMED for server in manager.servers)
            await identify(manager.servers, wait=unnamed)
        except ConfigError as error:
            text = str(error).replace(f"--{OPENAI_NAMESPACE}.", f"--{namespace}.")
            raise ConfigError(text) from error
        finally:
            await manager.close()
        named[namespace] = [server.config for server in manager.servers]
    return named


def server_manager(env_cls: type[EnvHooks], settings: CommandSettings) -> ServerManager:
    """The servers of the trained model."""
    options = settings.manager
    return ServerManager(
        settings.servers,
        env_cls.server_cls,
        slurm=options.slurm,
        testing=options.testing,
        max_n_completions=options.max_n_completions,
        reasoning_config=ReasoningConfig.from_env_config(settings.env),
        proxy_url=options.proxy_url,
        tool_parser=options.tool_parser,
    )


def make_env(
    env_cls: type[EnvHooks],
    settings: CommandSettings,
    server: ServerManager | None = None,
    tokenizer: Any = None,
) -> EnvHooks:
    """Create the environment; its constructor finds ``server`` and ``tokenizer``, if known.

    Environments that override ``__init__`` accept the four original arguments only, some under
    different names.
    """
    more = runtime_class(env_cls).more_servers(env_cls)
    env = env_cls.__new__(env_cls)
    vars(env)[SLOT] = ReadyServers(server or server_manager(env_cls, settings), tokenizer)
    first: dict[str, Any] = {
        "config": settings.env,
        "server_configs": settings.servers,
        "slurm": settings.manager.slurm,
        "testing": settings.manager.testing,
    }
    endpoints: dict[str, Any] = {
        more[name].argument: servers
        for name, servers in settings.more_servers.items()
        if servers is not None
    }
    construct: Callable[..., None] = env.__init__  # type: ignore[misc]  # of the same class
    try:
        inspect.signature(construct).bind(**first, **endpoints)
    except TypeError:
        construct(*first.values(), **endpoints)
    else:
        construct(**first, **endpoints)
    return env


async def named_by_servers(
    config: BaseEnvConfig, servers: Sequence[APIServer]
) -> tuple[BaseEnvConfig, Any]:
    """``config`` with the tokenizer of the served model; and that tokenizer, or None.

    A server is waited for only if no tokenizer is named: an environment may call no model.
    """
    named = "tokenizer_name" in config.model_fields_set
    tokens = [server for server in servers if isinstance(server, TokenServer)]
    names = await identify(servers, wait=bool(tokens and not named))
    if names and not named:
        logger.info("tokenizer of the served model: %s", names[0])
        config = config.model_copy(update={"tokenizer_name": names[0]})
    elif tokens and not named:
        logger.warning("no server names a tokenizer: default %s", config.tokenizer_name)
    if not tokens or not (names or named):
        return config, None
    tokenizer = load_tokenizer_named(config.tokenizer_name)
    for server in tokens:
        await server.require_tokenizer(tokenizer, config.tokenizer_name)
    return config, tokenizer


async def identify(servers: Sequence[APIServer], *, wait: bool) -> list[str]:
    """Ask each server for its model; returns directories or hub names, where listed."""
    engines = [server for server in servers if isinstance(server, OpenAICompatibleServer)]
    for server in engines:
        try:
            await server.identify()
        except InferenceUnavailable:
            logger.info(
                "%s does not answer; %s", server._parts.root_url, server._parts.health.remedy
            )
    if wait and engines and not any(server.identified for server in engines):
        await engines[0].health.wait_until_healthy()
    return [server.directory for server in engines if server.directory]


async def require_answers(servers: Sequence[APIServer]) -> None:
    """Raise ConfigError if a server does not answer, so that no rollout waits for it."""
    for server in servers:
        if server._parts.health.enabled and not await server._parts.health.probe():
            port = urlsplit(server._parts.root_url).port or 9001
            raise ConfigError(
                f"no inference server at {server._parts.base_url}: start `atropos infer --model "
                f"MODEL_DIR --port {port}`, or name another server"
            )
