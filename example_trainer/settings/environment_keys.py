"""Keys of the command line that name an environment, or a setting of an environment.

environments.0.env.group_size          a setting: environments.0.config.env.group_size
environments.larger.openai.timeout     the same, of the environment with this name
environments.0.env.OMP_NUM_THREADS     a variable of its process, in capital letters
environments.0.count                   a key of the plan
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment
from atroposlib.settings.sentences import did_you_mean

ENVIRONMENTS = "environments."
VARIABLES = (
    "env"  # of a process in the plan, and the first section of an environment's settings
)


def environment_label(section: Mapping[str, Any], number: int) -> str:
    """The name of an environment: the configured name, else that of its script."""
    program = section.get("script") or (section.get("command") or [""])[0]
    return str(section.get("name") or Path(program).stem or f"environment-{number}")


def in_environments(
    override: Assignment, environments: Sequence[Mapping[str, Any]], fields: Collection[str]
) -> Assignment:
    """The override under its key in the plan; any key but of an environment as it is.

    Args:
        environments: sections of the files.
        fields: keys of a section.

    Raises:
        ConfigError: no environment has this number or name, or the key has no meaning there.
    """
    if not override.key.startswith(ENVIRONMENTS) or not environments:
        return override
    number, below = _environment_of(override, environments)
    head, _, name = below.partition(".")
    if (head == VARIABLES and name and not _is_variable(name)) or (
        name and head not in fields
    ):
        below = f"config.{below}"
    elif head not in fields:
        above = f"{ENVIRONMENTS}{number}."
        nearest = did_you_mean(above + head, [above + field for field in fields]) or (
            f"; settings of the environment are {above}env.NAME"
        )
        raise ConfigError(f"{override.place} is no setting{nearest}")
    return replace(override, key=f"{ENVIRONMENTS}{number}.{below}")


def _environment_of(
    override: Assignment, environments: Sequence[Mapping[str, Any]]
) -> tuple[int, str]:
    """The number of the environment, and the key below it."""
    key = override.key.removeprefix(ENVIRONMENTS)
    head, _, below = key.partition(".")
    if head.isdecimal() and int(head) < len(environments):
        return int(head), below
    labels = [environment_label(section, i) for i, section in enumerate(environments)]
    # A name may contain dots; of two that fit the longer is meant.
    fitting = [label for label in labels if key == label or key.startswith(f"{label}.")]
    label = max(fitting, key=len, default="")
    numbers = [i for i, known in enumerate(labels) if known == label]
    if len(numbers) == 1:
        return numbers[0], key[len(label) + 1 :]
    listed = ", ".join(f"{i} ({known})" for i, known in enumerate(labels))
    if numbers:
        raise ConfigError(f"{override.place}: several environments are {label}: {listed}")
    nearest = did_you_mean(head, labels) or f"; there are {listed}"
    raise ConfigError(f"{override.place}: no environment is {head}{nearest}")


def _is_variable(name: str) -> bool:
    """Whether a name is that of an environment variable: in capitals, or of a proxy."""
    return name.isupper() or name.endswith("_proxy")
