"""The command line of every environment: ``serve``, ``process`` and ``evaluate``.

    class defaults  <  config_init (and the subcommand)  <  YAML file  <  flags

One merger for all three. ``--env.<field>`` and ``--openai.<field>`` take a value as
``--k v`` or ``--k=v``; lists and mappings are JSON; ``None`` is null.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_cli.argparse import FailedExecutionException

from atroposlib.envs.config import BaseEnvConfig, nearest
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.evaluation import run_evaluate
from atroposlib.envs.runtime import EnvRuntime
from atroposlib.envs.server_handling.configs import (
    APIServerConfig,
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
    as_server_list,
    resolve_openai_configs,
)
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.utils.cli import extract_namespace, merge_dicts

logger = logging.getLogger(__name__)

MODES = {
    "serve": "roll out for a trainer, through the rollout API",
    "process": "make scored groups into a jsonl file, without a trainer",
    "evaluate": "evaluate the model once",
}
# Set by a subcommand whatever config_init says; YAML and flags still win.
FORCED = {"process": {"ensure_scores_are_not_same": False, "include_messages": True}}


@dataclass(frozen=True)
class Settings:
    """What a command line amounts to."""

    mode: str
    env: BaseEnvConfig
    servers: ServerConfigs
    manager: ServerManagerConfig


def main(env_cls: type[EnvRuntime], argv: Sequence[str] | None = None) -> None:
    """Run ``env_cls`` as the command line says; a clear error exits with status 2 or 1."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per status poll
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        settings = read_settings(env_cls, words)
    except (ConfigError, FailedExecutionException) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    try:
        asyncio.run(run(env_cls, settings))
    except (AtroposError, asyncio.CancelledError, KeyboardInterrupt) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        raise SystemExit(1) from error


async def run(env_cls: type[EnvRuntime], settings: Settings) -> None:
    """Make the environment and run the subcommand to its end."""
    env = make_env(env_cls, settings)
    if settings.mode == "serve":
        await env.env_manager()
    elif settings.mode == "process":
        await env.process_manager()
    else:
        _keep_config(settings)
        await run_evaluate(env)


def make_env(env_cls: type[EnvRuntime], settings: Settings) -> EnvRuntime:
    """The environment of these settings."""
    manager = settings.manager
    env = env_cls(
        config=settings.env,
        server_configs=settings.servers,
        slurm=manager.slurm,
        testing=manager.testing,
    )
    # Not constructor arguments: environments that override __init__ take just the four.
    env.server.max_n_completions = manager.max_n_completions
    if manager.proxy_url:
        raise ConfigError("proxy_url: the managed-server proxy is not available here yet")
    return env


# --- merging ------------------------------------------------------------------------


def read_settings(env_cls: type[EnvRuntime], words: Sequence[str]) -> Settings:
    """Merge code, YAML file and flags.

    Raises:
        ConfigError: a name is unknown or a value is not accepted; the message names it.
    """
    default_env, default_servers = env_cls.config_init()
    env_fields = type(default_env)
    mode = words[0] if words and words[0] in MODES else "serve"
    base = {
        **default_env.model_dump(),
        **FORCED.get(mode, {}),
        **_groups_path(env_cls, default_env, mode),
    }
    parser = build_parser(env_cls, env_fields, base, default_servers)
    given = vars(parser.parse_args(join_values(words)))
    mode = given.pop("mode")
    flags = {name: parse_value(field, given[name]) for name, field in _flags(env_fields) if
             name in given}  # fmt: skip
    yaml_config = read_yaml(given.get("config"), env_fields)

    env_prefix = ENV_NAMESPACE + NAMESPACE_SEP
    env_values = merge_dicts(
        base, yaml_config.get("env") or {}, extract_namespace(flags, env_prefix)
    )
    manager_names = ServerManagerConfig.model_fields.keys()
    manager_values = {
        **{k: v for k, v in yaml_config.items() if k in manager_names},
        **{k: v for k, v in flags.items() if k in manager_names},
    }
    openai_flags = {k: v for k, v in flags.items() if k.startswith(OPENAI_NAMESPACE + ".")}
    try:
        return Settings(
            mode=mode,
            env=env_fields(**env_values),
            servers=resolve_openai_configs(
                default_servers,
                yaml_config=yaml_config,
                cli_passed_flags=openai_flags,
                logger=logger,
            ),
            manager=ServerManagerConfig(**manager_values),
        )
    except ValidationError as error:
        raise ConfigError(describe(error)) from error


def _groups_path(
    env_cls: type[EnvRuntime], default_env: BaseEnvConfig, mode: str
) -> dict[str, Any]:
    if mode != "process" or default_env.data_path_to_save_groups is not None:
        return {}
    return {"data_path_to_save_groups": f"data/{env_cls.name or 'groups'}.jsonl"}


def describe(error: ValidationError) -> str:
    """One line per setting that was not accepted."""
    return "; ".join(
        f"{error.title}.{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}"
        for e in error.errors()
    )


def read_yaml(path: str | None, env_fields: type[BaseEnvConfig]) -> dict[str, Any]:
    """The settings of a YAML file; a name that means nothing is refused, not ignored."""
    if path is None:
        return {}
    import yaml

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config {path}: expected a mapping at the top")
    known_top = [ENV_NAMESPACE, OPENAI_NAMESPACE, *ServerManagerConfig.model_fields]
    _refuse_unknown(path, "", loaded, known_top)
    _refuse_unknown(path, "env.", loaded.get("env") or {}, list(env_fields.model_fields))
    servers = loaded.get("openai") or []
    for server in servers if isinstance(servers, list) else [servers]:
        _refuse_unknown(path, "openai.", server, list(APIServerConfig.model_fields))
    return loaded


def _refuse_unknown(
    path: str, prefix: str, values: Mapping[str, Any], known: list[str]
) -> None:
    for name in values:
        if name not in known:
            hint = nearest(str(name), known)
            raise ConfigError(f"--config {path}: unknown setting {prefix}{name}{hint}")


# --- flags --------------------------------------------------------------------------


def _flags(env_fields: type[BaseEnvConfig]) -> list[tuple[str, Any]]:
    """Every flag with its field: ``("env.group_size", FieldInfo)`` and so on."""
    named: list[tuple[str, type[BaseModel]]] = [
        (ENV_NAMESPACE + NAMESPACE_SEP, env_fields),
        (OPENAI_NAMESPACE + NAMESPACE_SEP, APIServerConfig),
        ("", ServerManagerConfig),
    ]
    return [
        (prefix + name, field)
        for prefix, model in named
        for name, field in model.model_fields.items()
    ]


def build_parser(
    env_cls: type[EnvRuntime],
    env_fields: type[BaseEnvConfig],
    env_values: Mapping[str, Any],
    servers: ServerConfigs,
) -> argparse.ArgumentParser:
    """A parser with every flag; the help shows the defaults that this environment really has."""
    listed = as_server_list(servers)
    first: ServerBaseline = listed[0] if listed else ServerBaseline()
    shown = {f"{ENV_NAMESPACE}.{name}": value for name, value in env_values.items()}
    shown.update((f"openai.{k}", v) for k, v in first.model_dump().items() if k != "api_key")
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    flags.add_argument("--config", metavar="YAML", help="settings file; flags win over it")
    for name, field in _flags(env_fields):
        default = shown.get(name, field.get_default(call_default_factory=True))
        text = f"{field.description or ''} [{default}]".replace("%", "%%")
        flags.add_argument(f"--{name}", metavar="VALUE", help=text)
    parser = argparse.ArgumentParser(description=(env_cls.__doc__ or env_cls.__name__))
    modes = parser.add_subparsers(dest="mode", required=True, metavar="|".join(MODES))
    for mode, help_text in MODES.items():
        modes.add_parser(
            mode,
            help=help_text,
            parents=[flags],
            allow_abbrev=False,
            usage="%(prog)s [--config YAML] [--env.<field> VALUE] [--openai.<field> VALUE] ...",
        )
    return parser


def join_values(words: Sequence[str]) -> list[str]:
    """``--k v`` as ``--k=v``, so that a value may begin with a dash; a bare flag is true."""
    joined: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word.startswith("--") and "=" not in word and word not in ("--", "--help"):
            if i < len(words) and not words[i].startswith("--") and words[i] != "-h":
                word, i = f"{word}={words[i]}", i + 1
            else:
                word = f"{word}=true"
        joined.append(word)
    return joined


def parse_value(field: Any, text: str) -> Any:
    """The value a flag's text stands for; pydantic turns it into the field's type."""
    if text == "None":
        return None
    if _takes_json(field.annotation) and text[:1] in '[{"':
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{text!r} is not JSON: {error}") from error
    return text


def _takes_json(annotation: Any) -> bool:
    """Whether a value of this type is, or may be, a list or a mapping."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_takes_json(option) for option in get_args(annotation))
    kind = origin or annotation
    if not isinstance(kind, type):
        return kind is Any
    return issubclass(kind, (list, dict, tuple, set, BaseModel, Sequence, Mapping)) and (
        not issubclass(kind, (str, bytes))
    )


def _keep_config(settings: Settings) -> None:
    """Beside evaluation results, the configuration they came from; secrets stay out."""
    if settings.env.data_dir_to_save_evals is None:
        return
    import yaml

    servers = as_server_list(settings.servers) or []
    dumped = [server.model_dump(mode="json", exclude={"api_key"}) for server in servers]
    directory = Path(settings.env.data_dir_to_save_evals)
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "env": settings.env.model_dump(mode="json"),
        "openai": dumped[0] if len(dumped) == 1 else dumped or {},
        "slurm": settings.manager.slurm,
        "testing": settings.manager.testing,
    }
    path = directory / "evaluate_config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
