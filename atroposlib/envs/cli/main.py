"""The command line of every environment: ``serve``, ``process`` and ``evaluate``.

    words -> settings (code, YAML file and flags merged) -> environment -> its subcommand

Status 2: the settings cannot be used. Status 1: the run failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic_cli.argparse import FailedExecutionException

from atroposlib.envs.cli.merge import CommandSettings, help_page, read_settings
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.process import run_evaluate
from atroposlib.envs.settings import flags
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.generation.configs import (
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
    as_server_list,
)
from atroposlib.generation.routing.manager import ServerManager

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1"})


def main(env_cls: type[EnvRuntime], argv: Sequence[str] | None = None) -> None:
    """Run ``env_cls`` as the command line says; a clear error exits with status 2 or 1."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per status poll
    words = list(sys.argv[1:] if argv is None else argv)
    if set(flags.HELP_FLAGS) & set(words):
        print(help_page(env_cls, Path(sys.argv[0]).name, words))
        raise SystemExit(0)
    try:
        _refuse_running_loop()
        settings = read_settings(env_cls, words)
        # Outside the loop, where the constructors of older environments expect to be.
        env = make_env(env_cls, settings)
    except (ConfigError, FailedExecutionException) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    try:
        asyncio.run(run(env, settings))
    except (AtroposError, asyncio.CancelledError, KeyboardInterrupt) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        raise SystemExit(1) from error


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "a command line runs its own event loop, and one is running here already, as in a "
        "notebook: make the environment and await its env_manager or process_manager"
    )


async def run(env: EnvRuntime, settings: CommandSettings) -> None:
    """Run the subcommand to its end."""
    if settings.mode == "serve":
        await env.env_manager()
        return
    warn_of_local_urls(settings.servers)
    if settings.mode == "process":
        await env.process_manager()
    else:
        _keep_config(settings)
        await run_evaluate(env)


def make_env(env_cls: type[EnvRuntime], settings: CommandSettings) -> EnvRuntime:
    """The environment of these settings.

    Environments that override ``__init__`` take the four arguments of old, so what came
    later is set on the server manager, and only where a flag or the file says it.
    """
    manager, more = settings.manager, env_cls.more_servers()
    env = env_cls(
        config=settings.env,
        server_configs=settings.servers,
        slurm=manager.slurm,
        testing=manager.testing,
        **{
            more[name].argument: servers
            for name, servers in settings.more_servers.items()
            if servers is not None
        },
    )
    apply_manager_settings(env.server, manager)
    return env


def apply_manager_settings(server: ServerManager, settings: ServerManagerConfig) -> None:
    """Set on ``server`` what a flag or the file gives."""
    if "max_n_completions" in settings.model_fields_set:
        server.max_n_completions = settings.max_n_completions
    if settings.tool_parser is not None:
        server.tool_parser = settings.tool_parser
    if settings.proxy_url is not None:
        server.proxy_url = settings.proxy_url
        server.use_proxy = True


def warn_of_local_urls(servers: ServerConfigs) -> None:
    """Without a trainer, a server on this machine is often one that nobody has started."""
    local = [
        server.base_url
        for server in as_server_list(servers) or []
        if urlsplit(server.base_url or "").hostname in LOCAL_HOSTS
    ]
    if local:
        warnings.warn(
            f"inference on this machine: {', '.join(map(str, local))} must be running",
            UserWarning,
            stacklevel=2,
        )


def _keep_config(settings: CommandSettings) -> None:
    """Beside evaluation results, the configuration they came from; secrets stay out."""
    if settings.env.data_dir_to_save_evals is None:
        return
    import yaml

    directory = Path(settings.env.data_dir_to_save_evals)
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "env": settings.env.model_dump(mode="json"),
        "openai": _dumped(settings.servers),
        "slurm": settings.manager.slurm,
        "testing": settings.manager.testing,
        **{name: _dumped(servers) for name, servers in settings.more_servers.items()},
    }
    path = directory / "evaluate_config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _dumped(configs: ServerConfigs | None) -> Mapping[str, Any] | list[Mapping[str, Any]]:
    """One mapping, a list of several, or nothing for generated addresses."""
    listed: Sequence[ServerBaseline] = [] if configs is None else as_server_list(configs) or []
    dumped: list[Mapping[str, Any]] = [
        server.model_dump(mode="json", exclude={"api_key"}) for server in listed
    ]
    return dumped[0] if len(dumped) == 1 else dumped or {}
