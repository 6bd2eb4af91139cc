"""The original's import path of :mod:`example_trainer.settings.args`."""

from example_trainer.settings.args import (
    ALIASES,
    EPILOG,
    ONE_WORD,
    assign,
    build_parser,
    config_from_args,
    flag,
    parse_args,
    settings_of,
    validated,
    with_set,
)

__all__ = [
    "ALIASES",
    "EPILOG",
    "ONE_WORD",
    "assign",
    "build_parser",
    "config_from_args",
    "flag",
    "parse_args",
    "settings_of",
    "validated",
    "with_set",
]
