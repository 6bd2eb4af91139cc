"""Command-line flags such as ``--env.group_size 8``: names, values, help page. Pure.

Both ``--k v`` and ``--k=v``. A value may begin with one dash. Lists and mappings are JSON.
``None`` is null. A flag of a boolean field without a value is true.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    BaseEnvConfig,
    with_new_names,
)
from atroposlib.errors import ConfigError
from atroposlib.utils.cli import get_double_dash_flags
from atroposlib.utils.command.parser import API_TOKEN, HUB, CommandParser, did_you_mean

CONFIG_FLAG = "config"
HELP_FLAGS = ("--help", "-h")


def read_flags(words: Sequence[str], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The values of a command line by flag; ``config`` is the path of the YAML file.

    Raises:
        ConfigError: an unknown flag, an unreadable value, or a word without a flag.
    """
    strays = [
        word
        for before, word in zip(["", *words], words)
        if word == "--" or not word.startswith("--") and not _takes_next(before)
    ]
    if strays:
        raise ConfigError(f"{strays[0]!r} belongs to no flag; write --<name> <value>")
    given: dict[str, Any] = {}
    env = ENV_NAMESPACE + NAMESPACE_SEP
    for name, text in with_new_names(get_double_dash_flags(words), env).items():
        if name == CONFIG_FLAG:
            if not isinstance(text, str):
                raise ConfigError("--config: the path of a YAML file is missing")
            given[name] = text
        elif name in fields:
            given[name] = parse_value(name, fields[name].annotation, text)
        else:
            raise ConfigError(f"unknown flag --{name}{_hint(name, [*fields, CONFIG_FLAG])}")
    return given


def _takes_next(word: str) -> bool:
    return word.startswith("--") and word != "--" and "=" not in word


def _hint(name: str, known: Sequence[str]) -> str:
    # Often the namespace is missing (--group_size); spelling alone may not find that.
    same = [flag for flag in known if flag.rpartition(".")[2] == name.rpartition(".")[2]]
    return did_you_mean(f"--{name}", [f"--{flag}" for flag in same or known])


def parse_value(name: str, annotation: Any, text: str | bool | None) -> Any:
    """The value of a flag's text; pydantic converts it to the field's type later."""
    if text is None:
        return None
    if text is True or text is False:
        if not _may_be(annotation, (bool,)):
            raise ConfigError(f"--{name}: a value is missing")
        return text
    if text[:1] in ("[", "{") and _may_be(annotation, _CONTAINERS):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            if not _may_be(annotation, (str,)):
                raise ConfigError(f"--{name}: {text!r} is not JSON: {error}") from error
    return text


_CONTAINERS = (list, dict, tuple, set, frozenset, BaseModel, Sequence, Mapping)


def _may_be(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Whether ``annotation`` admits a value of one of ``kinds``."""
    origin = get_origin(annotation)
    if origin in _UNIONS:
        return any(_may_be(option, kinds) for option in get_args(annotation))
    kind = origin or annotation
    if not isinstance(kind, type):
        return kind is Any
    is_text = issubclass(kind, (str, bytes))  # str is a Sequence, but no container here
    return issubclass(kind, kinds) and (not is_text or str in kinds)


GROUPS = {
    "groups and rollouts": "group_size max_num_workers max_num_workers_per_node max_token_length "
    "total_steps batch_size max_batches_offpolicy ensure_scores_are_not_same include_messages "
    "worker_timeout max_item_retries max_failures_in_a_row seed tokenizer_name",
    "evaluation": "steps_per_eval eval_at_start eval_at_end eval_handling eval_limit_ratio "
    "max_eval_workers data_dir_to_save_evals samples_path",
    "rollout API and trainer": "rollout_server_url inference_weight min_batch_allocation "
    "api_timeout_s trainer_timeout_s drain_timeout_s final_weights_timeout_s",
    "files and metrics": "data_path_to_save_groups metrics_path use_wandb wandb_name trackers "
    "log_dir num_rollouts_to_keep num_rollouts_per_group_for_logging "
    "min_items_sent_before_logging",
    "reasoning": "thinking_mode reasoning_effort max_reasoning_tokens custom_thinking_prompt",
}
_GROUP_OF = {name: title for title, names in GROUPS.items() for name in names.split()}


def help_page(
    program: str,
    about: str,
    modes: Mapping[str, str],
    fields: Mapping[str, FieldInfo],
    defaults: Mapping[str, Any],
) -> str:
    """The help text: every flag with its type, its meaning and the default here."""
    lines = "\n".join(f"  {mode}: {text}" for mode, text in modes.items())
    parser = CommandParser(
        prog=program,
        description=f"{about.strip()}\n\n{lines}",
        usage=f"%(prog)s {'|'.join(modes)} [--config YAML] [--env.<field> VALUE] ...",
        variables=(API_TOKEN, "OPENAI_API_KEY: of api.openai.com, if that is the server", HUB),
    )
    parser.add_argument("--config", metavar="YAML", help="settings file; flags win over it")
    titles = {name: title_of(name) for name in fields}
    order = ["settings of this environment", *GROUPS]
    groups = {
        title: parser.add_argument_group(title)
        for title in dict.fromkeys([*order, *titles.values()])
    }
    for name, field in fields.items():
        default = defaults.get(name, field.get_default(call_default_factory=True))
        shown = default.value if isinstance(default, Enum) else default
        text = f"{field.description or ''} [{shown}]".replace("%", "%%")
        kind = type_name(field.annotation)
        groups[titles[name]].add_argument(f"--{name}", metavar=kind, help=text)
    return parser.format_help()


def title_of(name: str) -> str:
    """The group of a flag in the help."""
    namespace, dot, last = name.partition(NAMESPACE_SEP)
    if not dot:
        return "all servers"
    if namespace != ENV_NAMESPACE:
        return f"inference servers ({namespace})"
    if last in BaseEnvConfig.model_fields:
        return _GROUP_OF.get(last, "more")
    return "settings of this environment"


def type_name(annotation: Any) -> str:
    """The type of a flag's value, such as ``INT`` or ``STOP_TRAIN|NONE``."""
    options = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
    names: list[str] = []
    for kind in (option for option in options if option is not type(None)):
        if get_origin(kind) is Literal:
            names += map(str, get_args(kind))
        elif isinstance(kind, type) and issubclass(kind, Enum):
            names += [str(member.value) for member in kind]
        else:
            names.append(_TYPE_NAMES.get(kind, "JSON"))
    return "|".join(dict.fromkeys(names))


_UNIONS = (Union, types.UnionType)
_TYPE_NAMES = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT", Any: "TEXT"}
