"""References of a setting to variables of the environment: ``postgresql://a:${DB_PASSWORD}@db/a``.

A secret then stands in no file, and the process that needs it looks it up where it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from atroposlib.errors import ConfigError

VARIABLE = re.compile(r"\$\{(\w+)\}")


def with_variables(text: str, variables: Mapping[str, str], place: str) -> str:
    """The text with the values of the variables that it names.

    Raises:
        ConfigError: under ``place``; a variable is not set.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise ConfigError(f"{place}: the environment variable {match[1]} is not set")
        return variables[match[1]]

    return VARIABLE.sub(value_of, text)
