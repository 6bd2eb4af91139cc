"""Flags of the trainer, made from :class:`TrainingConfig`: one flag per field."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from atroposlib.errors import ConfigError
from example_trainer.config import TrainingConfig

ALIASES = {
    "model_name": "--model",
    "vllm_gpu_memory_utilization": "--gpu-memory-utilization",
}
# Given as one word such as 0-3,28-31.
ONE_WORD = {"train_layer_indices", "lora_layer_indices"}


def parse_args(argv: Sequence[str] | None = None) -> TrainingConfig:
    """Read the command line; exits with status 2 and a sentence if it cannot be used."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        return config_from_args(args)
    except ConfigError as error:
        parser.error(str(error))


def config_from_args(args: argparse.Namespace) -> TrainingConfig:
    """Settings from parsed flags; what was not given keeps its default.

    Raises:
        ConfigError: names the flag and what it accepts.
    """
    try:
        return TrainingConfig(**vars(args))
    except ValidationError as error:
        problems = [f"{flag(str(e['loc'][0]))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(problems)) from error


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def build_parser() -> argparse.ArgumentParser:
    """A parser that passes on only what was given, as text: pydantic knows the types."""
    parser = argparse.ArgumentParser(
        prog="atropos-grpo",
        description="Train a model with GRPO on groups scored by environments.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, field in TrainingConfig.model_fields.items():
        options: dict[str, Any] = {
            "dest": name,
            "required": field.is_required(),
            "help": _help(field.description, field.default),
        }
        kinds = _kinds(field.annotation)
        if bool in kinds:
            options["action"] = argparse.BooleanOptionalAction
        elif list in kinds and name not in ONE_WORD:
            options["nargs"] = "+"
        choices = [choice for kind in kinds for choice in typing.get_args(kind)]
        if choices and list not in kinds:
            options["choices"] = choices
        flags = [flag(name), *([ALIASES[name]] if name in ALIASES else [])]
        parser.add_argument(*flags, **options)
    return parser


def _help(description: str | None, default: Any) -> str:
    shown = "" if default is None or "default" in (description or "") else f" ({default})"
    return ((description or "") + shown).replace("%", "%%").replace("(PydanticUndefined)", "")


def _kinds(annotation: Any) -> list[Any]:
    """The alternatives of a type, ``list[int]`` given as ``list``."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    return [list] if typing.get_origin(annotation) is list else [annotation]
