"""Command-line flags like ``--env.group_size 8``: fields, names, values, help page. Pure.

Forms ``--k v`` and ``--k=v``. A value may begin with a dash. Lists and mappings are JSON.
``None`` is null. A flag of a boolean field without a value is true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Optional

from pydantic import BaseModel, Field, SkipValidation
from pydantic.fields import FieldInfo

from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    BaseEnvConfig,
    with_new_names,
)
from atroposlib.errors import ConfigError
from atroposlib.settings.fields import chosen_value, type_name
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.cli import flag_pairs
from atroposlib.utils.command.parser import API_TOKEN, HUB, CommandParser

CONFIG_FLAG = "config"
HELP_FLAGS = ("--help", "-h")


def flag_fields(prefix: str, defaults: BaseModel) -> dict[str, Any]:
    """Fields of a pydantic-cli command: the fields of ``defaults``, with its values, not validated.

    The default is a factory, so that pydantic-cli passes PydanticUndefined for a flag that is
    not given. The description also has the default, as argparse's help.
    """
    fields = {}
    for name, field in type(defaults).model_fields.items():
        value = getattr(defaults, name)
        shown = value.value if isinstance(value, Enum) else value
        fields[prefix + name] = (
            # Optional: the word None is null.
            Annotated[Optional[field.annotation], SkipValidation()],  # type: ignore[type-arg]
            Field(
                default_factory=lambda value=value: value,
                description=f"{field.description or ''} [{shown}]".replace("%", "%%"),
            ),
        )
    return fields


def read_flags(
    words: Sequence[str],
    fields: Mapping[str, FieldInfo],
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The text of each flag of a command line; ``aliases`` are further names of ``fields``.

    Raises ConfigError: an unknown flag, a flag without its value, or a word without a flag.
    """
    pairs = list(flag_pairs(words))
    flagged = {aliases.get(name, name): text for name, text in pairs if name}
    renamed = with_new_names(flagged, ENV_NAMESPACE + NAMESPACE_SEP)
    for name, text in renamed.items():
        if name not in fields:
            hint = did_you_mean(f"--{name}", [f"--{known}" for known in fields])
            raise ConfigError(f"unknown flag --{name}{hint}")
        is_switch, is_file = "BOOL" in type_name(fields[name].annotation), name == CONFIG_FLAG
        # A runner of pydantic-cli would take the word -- away.
        if text == "--" or text is True and not is_switch or text is None and is_file:
            what = "the path of a YAML file" if is_file else "a value"
            raise ConfigError(f"--{name}: {what} is missing")
    for name, word in pairs:
        if not name:
            raise ConfigError(f"{word!r} belongs to no flag; write --<name> <value>")
    return renamed


def parse_value(name: str, annotation: Any, value: Any) -> Any:
    """The value of a flag; pydantic converts text to the field's type later."""
    if not isinstance(value, str):
        return value
    kinds = type_name(annotation).split("|")
    if value[:1] in ("[", "{") and "JSON" in kinds:
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            if "TEXT" not in kinds:
                raise ConfigError(f"--{name}: {value!r} is not JSON: {error}") from error
    return None if value == "None" else chosen_value(annotation, value)


GROUPS = {
    "groups and rollouts": "group_size max_num_workers max_num_workers_per_node max_token_length "
    "total_steps batch_size max_batches_offpolicy ensure_scores_are_not_same include_messages "
    "images_once worker_timeout context_full_score max_item_retries max_failures_in_a_row seed "
    "tokenizer_name",
    "evaluation": "steps_per_eval eval_at_start eval_at_end eval_handling eval_limit_ratio "
    "max_eval_workers data_dir_to_save_evals samples_path",
    "rollout API and trainer": "rollout_server_url inference_weight min_batch_allocation "
    "api_timeout_s trainer_timeout_s drain_timeout_s final_weights_timeout_s",
    "files and metrics": "data_path_to_save_groups metrics_path use_wandb wandb_name trackers "
    "log_dir num_rollouts_to_keep num_rollouts_per_group_for_logging "
    "min_items_sent_before_logging",
    "teacher": "teacher",
    "reasoning": "thinking_mode reasoning_effort max_reasoning_tokens custom_thinking_prompt",
}
_GROUP_OF = {name: title for title, names in GROUPS.items() for name in names.split()}


def help_page(
    program: str, about: str, modes: Mapping[str, str], fields: Mapping[str, FieldInfo]
) -> str:
    """The help text: every flag with its type, its meaning and the default here."""
    lines = "\n".join(f"  {mode}: {text}" for mode, text in modes.items())
    parser = CommandParser(
        prog=program,
        description=f"{about.strip()}\n\n{lines}",
        usage=f"%(prog)s {'|'.join(modes)} [--config YAML] [--env.<field> VALUE] ...",
        variables=(API_TOKEN, "OPENAI_API_KEY: of api.openai.com, if that is the server", HUB),
    )
    groups: dict[str, Any] = {"options": parser}
    for title in ["settings of this environment", *GROUPS, *map(title_of, fields)]:
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
    for name, field in fields.items():
        kind = "YAML" if name == CONFIG_FLAG else type_name(field.annotation)
        groups[title_of(name)].add_argument(f"--{name}", metavar=kind, help=field.description)
    return parser.format_help()


def title_of(name: str) -> str:
    """The group of a flag in the help."""
    namespace, dot, last = name.partition(NAMESPACE_SEP)
    if not dot:
        return "options" if name == CONFIG_FLAG else "all servers"
    if namespace != ENV_NAMESPACE:
        return f"inference servers ({namespace})"
    is_own = last not in BaseEnvConfig.model_fields
    return "settings of this environment" if is_own else _GROUP_OF.get(last, "more")
