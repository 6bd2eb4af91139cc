"""Flags and YAML files for commands with settings of their own: atropos-sft and its like.

    atropos-sft --config mine.yaml --train-file sft.jsonl --lr 1e-5

Names are those of the settings; files count in their order, then flags.
"""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from atroposlib.errors import ConfigError
from example_trainer.settings.yaml_text import load_yaml

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], prog: str, description: str, argv: Sequence[str] | None = None) -> M:
    """Read the command line; exits with status 2 and a sentence if it cannot be used."""
    parser = build_parser(model, prog, description)
    given = vars(parser.parse_args(sys.argv[1:] if argv is None else argv))
    try:
        values = settings_of(model, given)
        return model(**values)
    except ConfigError as error:
        parser.error(str(error))
    except ValidationError as error:
        _refuse(parser, error)


def settings_of(model: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """Files first, then flags.

    Raises:
        ConfigError: a file cannot be read, or has a key that is no setting.
    """
    flags = dict(given)
    values: dict[str, Any] = {}
    for path in flags.pop("config", ()):
        settings = load_yaml(path)
        if unknown := sorted(settings.keys() - model.model_fields.keys()):
            raise ConfigError(f"{path}: {', '.join(unknown)}: no such setting")
        values |= settings
    return values | flags


def build_parser(
    model: type[BaseModel], prog: str, description: str
) -> argparse.ArgumentParser:
    """A flag per field; only what was given is passed on, as text: pydantic knows the types."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        epilog="How to use it: docs/other-training.md",
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="settings as YAML")
    for name, field in model.model_fields.items():
        text = field.description or ""
        if field.default is not None and not field.is_required() and "default" not in text:
            text += f" ({field.default})"
        options: dict[str, Any] = {"dest": name, "help": text.replace("%", "%%")}
        if bool in _kinds(field.annotation):
            options["action"] = argparse.BooleanOptionalAction
        elif list in _kinds(field.annotation) and not name.endswith("layer_indices"):
            options["nargs"] = "+"
        flags = ["--" + name.replace("_", "-"), *(["--model"] if name == "model_name" else [])]
        parser.add_argument(*flags, **options)
    return parser


def _kinds(annotation: Any) -> list[Any]:
    parts = [annotation, *typing.get_args(annotation)]
    return [typing.get_origin(part) or part for part in parts]


def _refuse(parser: argparse.ArgumentParser, error: ValidationError) -> NoReturn:
    problems = []
    for found in error.errors():
        flag = "--" + str(found["loc"][0]).replace("_", "-")
        missing = found["type"] == "missing"
        problems.append(f"{flag} is required" if missing else f"{flag}: {found['msg']}")
    parser.error("; ".join(problems))
