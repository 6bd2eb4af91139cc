"""The command line of every environment: ``serve``, ``process`` and ``evaluate``.

    class defaults  <  config_init  <  the subcommand's needs  <  YAML file  <  flags
    merged settings -> environment -> its subcommand

An unknown name is an error that suggests the nearest known one. Exit status 2: invalid
settings. Exit status 1: the run failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_cli.argparse import FailedExecutionException

from atroposlib.envs.runtime.creation import CommandSettings, make_named_env
from atroposlib.envs.runtime.env_runtime import EnvRuntime, MoreServers
from atroposlib.envs.runtime.process import run_evaluate
from atroposlib.envs.settings import flags
from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    OPENAI_NAMESPACE,
    BaseEnvConfig,
    with_new_names,
)
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.generation.configs import (
    APIServerConfig,
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
    as_server_list,
    resolve_servers,
)
from atroposlib.utils.cli import extract_namespace, merge_dicts
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import common_flags, did_you_mean, show

logger = logging.getLogger(__name__)

MODES = {
    "serve": "roll out for a trainer, through the rollout API",
    "process": "write scored groups to a jsonl file, without a trainer",
    "evaluate": "evaluate the model once",
}
importing: set[str] = set()  # scripts whose last line must not run their command line
FAILURES = (AtroposError, asyncio.CancelledError, KeyboardInterrupt)
# Override config_init in this subcommand; the YAML file and flags override these.
FORCED = {"process": {"ensure_scores_are_not_same": False, "include_messages": True}}


def main(env_cls: type[EnvRuntime], argv: Sequence[str] | None = None) -> None:
    """Run the subcommand of ``env_cls`` that the command line names; errors exit with 2 or 1."""
    if env_cls.__module__ in importing:
        return
    program = Path(sys.argv[0])
    options, words = common_flags(program.name, sys.argv[1:] if argv is None else argv)
    logs.configure(env_cls.name or program.stem, options.log_format, options.log_level)
    if set(flags.HELP_FLAGS) & set(words):
        show(help_page(env_cls, program.name, words))
        raise SystemExit(0)
    try:
        _refuse_running_loop()
        settings = read_settings(env_cls, words)
        env = make_named_env(env_cls, settings)
        asyncio.run(run(env, settings))
    except (*FAILURES, FailedExecutionException) as error:
        logger.debug("the traceback of the error below", exc_info=error)
        brief = getattr(error, "after_log", "") if logger.isEnabledFor(logging.WARNING) else ""
        logs.report("error", brief or str(error) or type(error).__name__)
        invalid = isinstance(error, (ConfigError, FailedExecutionException))
        raise SystemExit(2 if invalid else 1) from error


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "an event loop is already running, as in a notebook, and the command line starts "
        "another: create the environment and await its env_manager or process_manager"
    )


async def run(env: EnvRuntime, settings: CommandSettings) -> None:
    """Run the subcommand to its end."""
    if settings.mode == "serve":
        await env.env_manager()
    elif settings.mode == "process":
        await env.process_manager()
    else:
        _keep_config(settings)
        await run_evaluate(env)


def _keep_config(settings: CommandSettings) -> None:
    """Write the configuration to the directory of evaluation results, without API keys."""
    if settings.env.data_dir_to_save_evals is None:
        return
    import yaml

    directory = Path(settings.env.data_dir_to_save_evals)
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "env": settings.env.model_dump(mode="json"),
        "openai": _as_document(settings.servers),
        "slurm": settings.manager.slurm,
        "testing": settings.manager.testing,
        **{name: _as_document(servers) for name, servers in settings.more_servers.items()},
    }
    path = directory / "evaluate_config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _as_document(configs: ServerConfigs | None) -> Mapping[str, Any] | list[Mapping[str, Any]]:
    """One mapping, a list of several, or an empty mapping for generated addresses."""
    listed: Sequence[ServerBaseline] = [] if configs is None else as_server_list(configs) or []
    dumped: list[Mapping[str, Any]] = [
        server.model_dump(mode="json", exclude={"api_key"}) for server in listed
    ]
    return dumped[0] if len(dumped) == 1 else dumped or {}


# --- settings of code, file and flags ----------------------------------------------------


class Defaults:
    """Settings of an environment before file and flags, and the names it accepts."""

    def __init__(self, env_cls: type[EnvRuntime], mode: str) -> None:
        config, self.servers = env_cls.config_init()
        self.env_fields = type(config)
        self.env = {**_fields_set(config), **FORCED.get(mode, {})}
        if mode == "process" and config.data_path_to_save_groups is None:
            self.env["data_path_to_save_groups"] = f"data/{env_cls.name or 'groups'}.jsonl"
        self.more: Mapping[str, MoreServers] = env_cls.more_servers()
        models: dict[str, type[BaseModel]] = {
            ENV_NAMESPACE + NAMESPACE_SEP: self.env_fields,
            **{name + NAMESPACE_SEP: APIServerConfig for name in self.server_namespaces},
            "": ServerManagerConfig,
        }
        # Every flag with its field, such as {"env.group_size": FieldInfo}.
        self.fields = {
            prefix + name: field
            for prefix, model in models.items()
            for name, field in model.model_fields.items()
        }

    @property
    def server_namespaces(self) -> list[str]:
        """``openai``, and what the environment adds."""
        return [OPENAI_NAMESPACE, *self.more]

    def shown(self) -> dict[str, Any]:
        """The defaults by flag, for the help; secrets stay out."""
        shown = {f"{ENV_NAMESPACE}.{name}": value for name, value in self.env.items()}
        servers = {OPENAI_NAMESPACE: self.servers}
        servers.update({k: v.defaults for k, v in self.more.items() if v.defaults is not None})
        for namespace, configs in servers.items():
            listed = as_server_list(configs)
            first: ServerBaseline = listed[0] if listed else ServerBaseline()
            dumped = first.model_dump(exclude={"api_key"})
            shown.update((f"{namespace}.{name}", value) for name, value in dumped.items())
        return shown


def _fields_set(config: BaseEnvConfig) -> dict[str, Any]:
    """The fields that ``config_init`` set.

    Defaults of the class are left out: some environments have defaults that their own
    annotation would reject, such as None for a str.
    """
    dumped = config.model_dump()
    return {
        name: value
        for name, value in dumped.items()
        if name in config.model_fields_set
        or name not in type(config).model_fields
        or getattr(config, name) != type(config).model_fields[name].default
    }


def read_settings(env_cls: type[EnvRuntime], words: Sequence[str]) -> CommandSettings:
    """Merge code, YAML file and flags.

    Raises:
        ConfigError: an unknown name or a rejected value, named in the message.
        DatasetUnavailable: there is no file or folder at a path of the data.
    """
    mode, words = read_mode(words)
    defaults = Defaults(env_cls, mode)
    given = flags.read_flags(words, defaults.fields)
    path = given.pop(flags.CONFIG_FLAG, None)
    yaml_config = read_yaml(path, defaults)
    sourced = partial(described, path=path, given=given)

    manager_names = ServerManagerConfig.model_fields.keys()
    env_values = merge_dicts(
        defaults.env,
        yaml_config.get(ENV_NAMESPACE) or {},
        extract_namespace(given, ENV_NAMESPACE + NAMESPACE_SEP),
    )
    merged = {**yaml_config, **given}
    manager_values = {k: v for k, v in merged.items() if k in manager_names}

    def servers(namespace: str, configs: ServerConfigs | None) -> ServerConfigs | None:
        overrides = extract_namespace(given, namespace + NAMESPACE_SEP)
        from_yaml = yaml_config.get(namespace)
        if configs is None and not overrides and not from_yaml:
            return None
        base = APIServerConfig() if configs is None else configs
        with sourced(namespace):
            return resolve_servers(base, from_yaml, overrides, namespace, logger)

    with sourced(ENV_NAMESPACE):
        env = defaults.env_fields(**env_values)
    with sourced(""):
        manager = ServerManagerConfig(**manager_values)
    env_cls.require_data(env)
    return CommandSettings(
        mode=mode,
        env=env,
        servers=servers(OPENAI_NAMESPACE, defaults.servers) or defaults.servers,
        manager=manager,
        more_servers={n: servers(n, more.defaults) for n, more in defaults.more.items()},
    )


def read_mode(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split the words into the subcommand and the rest."""
    if not words:
        raise ConfigError(f"a subcommand is required: {', '.join(MODES)}")
    if words[0] not in MODES:
        hint = did_you_mean(words[0], MODES)
        raise ConfigError(f"invalid choice {words[0]!r}: one of {', '.join(MODES)}{hint}")
    return words[0], list(words[1:])


def help_page(env_cls: type[EnvRuntime], program: str, words: Sequence[str]) -> str:
    """The flags of ``env_cls`` under the subcommand of ``words``, by default ``serve``."""
    mode = words[0] if words and words[0] in MODES else "serve"
    defaults = Defaults(env_cls, mode)
    about = env_cls.__doc__ or env_cls.__name__
    return flags.help_page(program, about, MODES, defaults.fields, defaults.shown())


@contextmanager
def described(
    namespace: str, path: str | None = None, given: Container[str] = ()
) -> Iterator[None]:
    """Convert pydantic's error: one sentence per rejected setting; API keys are not shown.

    A setting that no flag of ``given`` has set comes from the file ``path``, if there is one.
    """
    try:
        yield
    except ValidationError as error:
        sentences = []
        for problem in error.errors():
            parts = [*([namespace] if namespace else []), *map(str, problem["loc"])]
            simple = isinstance(problem["input"], (str, int, float, bool, list, type(None)))
            shown = simple and "api_key" not in parts
            got = f", got {problem['input']!r}" if shown else ""
            name = NAMESPACE_SEP.join(parts)
            where = f"--config {path}: " if path is not None and name not in given else ""
            sentences.append(f"{where}{name}: {problem['msg']}{got}")
        raise ConfigError("; ".join(sentences)) from error


# --- the YAML file --------------------------------------------------------------------


def read_yaml(path: str | None, defaults: Defaults) -> dict[str, Any]:
    """The settings of a YAML file; empty for an empty file."""
    if path is None:
        return {}
    import yaml

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {str(error.strerror).lower()}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if loaded is None:
        return {}
    namespaces = defaults.server_namespaces
    known = [ENV_NAMESPACE, *namespaces, *ServerManagerConfig.model_fields]
    top = _section(path, "", loaded, known)
    if isinstance(top.get(ENV_NAMESPACE), dict):
        top[ENV_NAMESPACE] = with_new_names(top[ENV_NAMESPACE])
    takes_any = defaults.env_fields.model_config.get("extra") == "allow"
    env_names = None if takes_any else list(defaults.env_fields.model_fields)
    _section(path, ENV_NAMESPACE, top.get(ENV_NAMESPACE), env_names)
    for namespace in namespaces:
        servers = top.get(namespace)
        for server in servers if isinstance(servers, list) else [servers]:
            _section(path, namespace, server, list(APIServerConfig.model_fields))
    return top


def _section(path: str, name: str, values: Any, known: list[str] | None) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        place = name or "the top"
        raise ConfigError(f"--config {path}: expected a mapping at {place}, got {values!r}")
    prefix = name + NAMESPACE_SEP if name else ""
    for key in values:
        if known is not None and key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"--config {path}: unknown setting {prefix}{key}{hint}")
    return values
