"""The command line of every environment: ``serve``, ``process`` and ``evaluate``.

    class defaults  <  config_init  <  the subcommand's needs  <  YAML file  <  flags
    merged settings -> environment -> its subcommand

An unknown name is an error that suggests the nearest known name. Exit status 2: another start
fails alike, by invalid settings, settings of sampling that every server refuses, or a mistake in
all samples of the first items. Exit status 1: the run failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_cli import Cmd

from atroposlib.envs.rollout.causes import SameMistake
from atroposlib.envs.runtime.creation import CommandSettings, make_named_env
from atroposlib.envs.runtime.env_runtime import name_of, runtime_class, runtime_of
from atroposlib.envs.runtime.hooks import EnvHooks
from atroposlib.envs.runtime.process import run_evaluate
from atroposlib.envs.settings import flags
from atroposlib.envs.settings.aliases import field_aliases, flag_aliases, with_field_names
from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    OPENAI_NAMESPACE,
    BaseEnvConfig,
    with_new_names,
)
from atroposlib.envs.settings.readable import recorded
from atroposlib.errors import AtroposError, ConfigError, InferenceRefused
from atroposlib.generation.configs import (
    APIServerConfig,
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
    as_server_list,
    resolve_servers,
    server_fields,
)
from atroposlib.settings.fields import validate_as
from atroposlib.settings.merge import Settings, as_tree, merge
from atroposlib.settings.sentences import did_you_mean, no_setting, settings_error
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import common_flags, show

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


def main(env_cls: type[EnvHooks], argv: Sequence[str] | None = None) -> None:
    """Run the subcommand of ``env_cls`` that the command line names; errors exit with 2 or 1."""
    if env_cls.__module__ in importing:
        return
    program = Path(sys.argv[0])
    options, words = common_flags(program.name, sys.argv[1:] if argv is None else argv)
    logs.configure(name_of(env_cls) or program.stem, options.log_format, options.log_level)
    if set(flags.HELP_FLAGS) & set(words):
        command, _ = read_command(env_cls, [words[0] if words[0] in MODES else "serve"])
        about = env_cls.__doc__ or env_cls.__name__
        show(flags.help_page(program.name, about, MODES, command.model_fields))
        raise SystemExit(0)
    try:
        build_command(env_cls, words).run()
    except FAILURES as error:
        logger.debug("the traceback of the error below", exc_info=error)
        status = exit_status(error)
        shown = str(error) or type(error).__name__
        # A launcher shows the last line of a process that ended for good, so this line is whole.
        is_logged = status == 1 and logger.isEnabledFor(logging.WARNING)
        after_log = getattr(error, "after_log", "") if is_logged else ""
        logs.report("error", after_log or shown.replace("\n", "; "))
        raise SystemExit(status) from error


def exit_status(error: BaseException) -> int:
    """2: another start fails alike, by settings, a bad request or a mistake; 1: the run failed."""
    if isinstance(error, ConfigError | SameMistake):
        return 2
    cause: BaseException | None = error
    while isinstance(cause, AtroposError):
        if isinstance(cause, InferenceRefused) and cause.status_code == 400:
            return 2
        cause = cause.__cause__
    return 1


def read_settings(env_cls: type[EnvHooks], words: Sequence[str]) -> CommandSettings:
    """The merged settings of a command line, which is not run; raises as EnvCommand.settings."""
    return build_command(env_cls, words).settings()


def build_command(env_cls: type[EnvHooks], words: Sequence[str]) -> EnvCommand:
    """The subcommand with the flags of a command line."""
    command, values = read_command(env_cls, words)
    given = Settings(values, {name: f"--{name}" for name in values})
    return validate_as(command, given, "--{}".format)


def read_command(
    env_cls: type[EnvHooks], words: Sequence[str]
) -> tuple[type[EnvCommand], dict[str, Any]]:
    """The subcommand that the first word names, and the text of its flags."""
    if not words:
        raise ConfigError(f"a subcommand is required: {', '.join(MODES)}")
    if words[0] not in MODES:
        hint = did_you_mean(words[0], MODES)
        raise ConfigError(f"invalid choice {words[0]!r}: one of {', '.join(MODES)}{hint}")
    # By its method, which an environment may override.
    command: type[EnvCommand] = getattr(env_cls, f"get_cli_{words[0]}_config_cls")()
    code = getattr(command, "code", None)  # absent in a class of an environment's author
    aliases = {} if code is None else flag_aliases(type(code), ENV_NAMESPACE + NAMESPACE_SEP)
    return command, flags.read_flags(words[1:], command.model_fields, aliases)


# --- the three commands ------------------------------------------------------------------


class EnvCommand(Cmd):
    """A subcommand of an environment: a field for each flag, like ``env.group_size``.

    Only the fields that were given are merged with code and file, and pydantic checks the
    result: a given value may be text, or a part of a nested setting.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    env_cls: ClassVar[type[EnvHooks]]
    mode: ClassVar[str]
    code: ClassVar[BaseEnvConfig]  # result of config_init, with the needs of the subcommand
    servers: ClassVar[dict[str, ServerConfigs | None]]  # keys: namespaces; None: optional
    config: str | None = Field(None, description="settings file; flags win over it")

    @model_validator(mode="before")
    @classmethod
    def _without_flags_not_given(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        # argparse passes the default object.
        return {k: v for k, v in values.items() if k not in defaults or v is not defaults[k]}

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The names of the fields: some types, like functions, have no schema."""
        return {"properties": dict(cls.model_fields)}

    def run(self) -> None:
        """Create the environment and run it to its end."""
        _refuse_running_loop()
        settings = self.settings()
        env = make_named_env(self.env_cls, settings)
        if self.mode == "evaluate":
            _keep_config(settings)
        modes = {"serve": env.env_manager, "process": env.process_manager}
        asyncio.run(modes.get(self.mode, partial(run_evaluate, runtime_of(env)))())

    def settings(self) -> CommandSettings:
        """Merge code, YAML file and flags.

        Raises:
            ConfigError: an unknown name or a rejected value, named in the message.
            DatasetUnavailable: there is no file or folder at a path of the data.
        """
        from_file = Settings() if self.config is None else read_file(self.config, type(self))
        given = {
            name: flags.parse_value(name, field.annotation, getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set and name != flags.CONFIG_FLAG
        }
        from_flags = Settings(as_tree(given), {name: f"--{name}" for name in given})
        # Without defaults of the class: an annotation may reject its own default, as with None
        # for a str.
        # In the form that the class takes: without computed fields.
        dump = partial(self.code.model_dump, round_trip=True, by_alias=False)
        own = self.code.model_fields_set | dump(exclude_defaults=True).keys()
        own |= _partly_replaced(self.code, from_file, from_flags)
        code = Settings({ENV_NAMESPACE: dump(include=own)})
        merged = merge(code, from_file, from_flags)
        rejecting = partial(name_rejected_settings, settings=merged)
        with rejecting(ENV_NAMESPACE):
            env = type(self.code)(**merged.values[ENV_NAMESPACE])
        _require_own_names(env, merged)
        with rejecting(""):
            names = ServerManagerConfig.model_fields.keys() & merged.values
            manager = ServerManagerConfig(**{name: merged.values[name] for name in names})
        runtime_class(self.env_cls).require_data(self.env_cls, env)
        servers = dict(self.servers)
        for namespace, configs in servers.items():
            listed, single = (
                source.values.get(namespace, {}) for source in (from_file, from_flags)
            )
            if configs is not None or listed or single:
                base = APIServerConfig() if configs is None else configs
                with rejecting(namespace):
                    servers[namespace] = resolve_servers(
                        base, listed, single, namespace, logger
                    )
        main_servers = servers.pop(OPENAI_NAMESPACE) or ServerBaseline()
        return CommandSettings(self.mode, env, main_servers, manager, servers)


def _require_own_names(env: BaseEnvConfig, merged: Settings) -> None:
    """Raise ConfigError for a setting that a class reads by its alias only."""
    for name in merged.values[ENV_NAMESPACE].keys() & type(env).model_fields.keys():
        if name not in env.model_fields_set and field_aliases(type(env).model_fields[name]):
            key = ENV_NAMESPACE + NAMESPACE_SEP + name
            raise ConfigError(
                f"{merged.place(key)}: {type(env).__name__} reads {name} by its alias only: leave "
                "populate_by_name=False out of its model_config"
            )


def _partly_replaced(code: BaseEnvConfig, *sources: Settings) -> set[str]:
    """Fields of the author for which a source has a mapping: only its keys replace the code's."""
    return {
        name
        for source in sources
        for name, value in (source.values.get(ENV_NAMESPACE) or {}).items()
        if isinstance(value, Mapping)
        and name in type(code).model_fields.keys() - BaseEnvConfig.model_fields.keys()
    }


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # there is none
        return
    raise ConfigError(
        "an event loop is already running, as in a notebook, and the command line starts "
        "another: create the environment and await its env_manager or process_manager"
    )


def command_class(env_cls: type[EnvHooks], mode: str) -> type[EnvCommand]:
    """The subcommand ``mode`` of ``env_cls``; the defaults of its fields are the code's."""
    config, configs = env_cls.config_init()
    needs: dict[str, Any] = dict(FORCED.get(mode, {}))
    if mode == "process" and config.data_path_to_save_groups is None:
        needs["data_path_to_save_groups"] = f"data/{name_of(env_cls) or 'groups'}.jsonl"
    code = config.model_copy(update=needs)
    more = {
        name: section.defaults
        for name, section in runtime_class(env_cls).more_servers(env_cls).items()
    }
    servers = {OPENAI_NAMESPACE: configs, **more}
    fields = flags.flag_fields(ENV_NAMESPACE + NAMESPACE_SEP, code)
    for namespace, listed in servers.items():
        known = as_server_list(listed) if listed else None
        first = known[0] if known else ServerBaseline()
        server = first if known else APIServerConfig().model_copy(update=first.model_dump())
        shown = server.model_copy(update={"api_key": ""})
        fields |= flags.flag_fields(namespace + NAMESPACE_SEP, shown)
    fields |= flags.flag_fields("", ServerManagerConfig())
    name = f"Cli{mode.title()}Config"  # name in Atropos
    made = create_model(name, __base__=EnvCommand, __doc__=MODES[mode], **fields)
    made.env_cls, made.mode, made.code, made.servers = env_cls, mode, code, servers
    return made


def _keep_config(settings: CommandSettings) -> None:
    """Write the configuration to the directory of evaluation results, without API keys."""
    if settings.env.data_dir_to_save_evals is None:
        return
    import yaml

    directory = Path(settings.env.data_dir_to_save_evals)
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "env": recorded(settings.env),
        "openai": _as_document(settings.servers),
        "slurm": settings.manager.slurm,
        "testing": settings.manager.testing,
        **{name: _as_document(servers) for name, servers in settings.more_servers.items()},
    }
    path = directory / "evaluate_config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _as_document(configs: ServerConfigs | None) -> dict[str, Any] | list[dict[str, Any]]:
    """A mapping, a list of several mappings, or an empty mapping for generated addresses."""
    listed = as_server_list(configs) if configs else None
    dumped = [server.model_dump(mode="json", exclude={"api_key"}) for server in listed or ()]
    return dumped[0] if len(dumped) == 1 else dumped or {}


@contextmanager
def name_rejected_settings(namespace: str, settings: Settings = Settings()) -> Iterator[None]:
    """Convert pydantic's error to sentences with the places of ``settings``."""
    try:
        yield
    except ValidationError as error:
        above = namespace + NAMESPACE_SEP if namespace else ""
        raise settings_error(error, settings.place, above=above) from error


# --- the YAML file --------------------------------------------------------------------


STRICT = "strict"  # key of a file in which an unknown setting is an error


def read_file(path: str, command: type[EnvCommand]) -> Settings:
    """The settings of a YAML file.

    An unknown setting is left out with a warning: files of the original hold keys that it
    ignores. With ``strict: true`` at the top of the file it is a ConfigError.
    """
    file = read_yaml(path)
    word = file.values.pop(STRICT, False)
    if word not in (True, False, "yes", "no", "on", "off"):
        raise ConfigError(f"{file.place(STRICT)} should be true or false, not {word!r}")
    strict = word in (True, "yes", "on")
    takes_any = command.code.model_config.get("extra") == "allow"
    names = {ENV_NAMESPACE: [*type(command.code).model_fields]}
    names |= {name: server_fields(configs) for name, configs in command.servers.items()}
    top = [*names, *ServerManagerConfig.model_fields]
    hints = [*top, *(f"{above}.{name}" for above in names for name in names[above])]

    def known_settings(above: str, values: Any, allowed: Sequence[str]) -> dict[str, Any]:
        if not isinstance(values, dict | None):
            raise ConfigError(f"{file.place(above)} should be a mapping, not {values!r}")
        kept = dict(values or {})
        if above == ENV_NAMESPACE:
            kept = with_field_names(type(command.code), with_new_names(kept))
        anything = takes_any and above == ENV_NAMESPACE
        for name in [name for name in kept if name not in allowed and not anything]:
            key = f"{above}{NAMESPACE_SEP}{name}" if above else str(name)
            problem = no_setting(file.place(key), key, hints)
            if strict:
                raise ConfigError(problem)
            logger.warning("%s: left out", problem)
            del kept[name]
        return kept

    settings = known_settings("", file.values, top)
    for above in names.keys() & settings:
        servers = settings[above]
        settings[above] = (
            [
                known_settings(f"{above}.{i}", server, names[above])
                for i, server in enumerate(servers)
            ]
            if isinstance(servers, list) and above in command.servers
            else known_settings(above, servers, names[above])
        )
    by_alias = flag_aliases(type(command.code), ENV_NAMESPACE + NAMESPACE_SEP)
    places = {by_alias.get(key, key): place for key, place in file.places.items()}
    return Settings(settings, places)
