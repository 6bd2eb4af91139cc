"""The command line of the trainer: a flag per setting, YAML files, ``key=value``.

    atropos-grpo --config base.yaml --config mine.yaml --lr 1e-5 actor.eps_clip=0.2

Files count in their order, then flags and overrides in theirs; overrides holds the keys.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import add_flag, flag_of, kinds_of, validate_as
from atroposlib.settings.merge import Assignment, Settings, assignments_of
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import (
    API_TOKEN,
    GPUS,
    HUB,
    TRACKERS,
    CommandParser,
    require,
)
from atroposlib.utils.tokenizers.loading import require_model
from example_trainer.settings.areal.defaults import (
    as_actor,
    is_areal_form,
    is_supervised,
    left_out,
    note_of,
)
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.files import (
    FIELDS,
    OVERRIDE,
    SECTIONS,
    is_known,
    parse_override,
    translate,
)
from example_trainer.settings.plugins import require_plugins
from example_trainer.settings.section import RENAMED
from example_trainer.settings.unknown import require_known

PROG = "atropos-grpo"
VARIABLES = (
    API_TOKEN,
    "ATROPOS_INFERENCE_TOKEN: token of the inference servers",
    "RANK, WORLD_SIZE, LOCAL_RANK: set by torchrun",
    HUB,
    TRACKERS,
    GPUS,
)
logger = logging.getLogger(__name__)
ALIASES = {
    "model_name": ("--model",),
    "vllm_gpu_memory_utilization": ("--gpu-memory-utilization",),
}
# Settings given as a single word: 0-3,28-31.
ONE_WORD = {"train_layer_indices", "lora_layer_indices"}
EPILOG = """\
key=value sets what a flag would, by any of its names: lr=1e-5, optim.lr=1e-5 (the section
above), actor.optimizer.lr=1e-5 (AReaL's). --config FILE reads the same keys from YAML, nested
or with dots; it may be given several times. The last one counts: defaults, then files in
their order, then flags and overrides in theirs. ${a.b} is the value of another key.
"""


def parse_args(argv: Sequence[str] | None = None, prog: str = PROG) -> TrainingConfig:
    """Parse the command line and configure the logs; on an error exit with status 2."""
    parser = build_parser(prog)
    args = parser.parse_args(with_set(sys.argv[1:] if argv is None else argv))
    logs.configure(prog, args.log_format, args.log_level)
    try:
        settings = settings_of(args)
        cfg = validate_as(TrainingConfig, settings)
    except ConfigError as error:
        parser.error(str(error))
    for note in settings.notes if os.environ.get("RANK", "0") == "0" else ():
        logger.info(f"note: {note}")
    return cfg


def config_to_run(argv: Sequence[str] | None = None) -> TrainingConfig:
    """Parse the command line; exit with status 2 if torch, a model or a plug-in is missing, too.

    Imports no torch, unless a plug-in does, and calls no process of the run.
    """
    cfg = parse_args(argv)
    require(PROG, "train", "torch", "transformers")
    try:
        require_plugins(cfg)
    except ConfigError as error:
        build_parser().error(str(error))
    try:
        references = [own.reference_model for own in (cfg, *cfg.algorithms.values())]
        for name in filter(None, (cfg.model_name, *references, cfg.critic_model)):
            require_model(name)
    except ConfigError as error:
        build_parser().error(f"model: {error}")
    return cfg


def config_from_args(args: argparse.Namespace) -> TrainingConfig:
    """Settings from the result of :func:`build_parser`; raises as :func:`validate_as`."""
    return validate_as(TrainingConfig, settings_of(args))


def settings_of(args: argparse.Namespace) -> Settings:
    """Files first, then flags and overrides in their order."""
    flags = vars(args)
    words = list(flags.get("assignments", ()))
    # A namespace made by hand, as by callers of the original.
    known = FIELDS.keys() | RENAMED.keys()
    words += [Assignment(k, v, flag_of(k)) for k, v in flags.items() if k in known]
    return settings_of_files(flags.get("config", ()), words)


def settings_of_files(
    paths: Iterable[str | Path],
    after: Iterable[Assignment],
    before: Iterable[Assignment] = (),
) -> Settings:
    """The settings of ``before``, the files and ``after``; the last of each counts."""
    files = [read_yaml(path) for path in paths]
    of_files = [assignment for file in files for assignment in assignments_of(file)]
    assignments, notes = [*before, *of_files, *after], list[str]()
    if any(is_areal_form(file.values) for file in files):
        assignments, notes = with_areal_defaults(assignments)
        require_known(assignments)
        assignments = [assignment for assignment in assignments if is_known(assignment)]
    settings = translate(assignments)
    settings.notes = [*notes, *settings.notes]
    return settings


def with_areal_defaults(
    assignments: Sequence[Assignment],
) -> tuple[list[Assignment], list[str]]:
    """The assignments after AReaL's defaults, and notes about the defaults.

    Raises ConfigError: the file trains by another command.
    """
    values = {assignment.key: assignment.value for assignment in assignments}
    if is_supervised(values):
        assignments = [
            replace(assignment, key=as_actor(assignment.key)) for assignment in assignments
        ]
    defaults = left_out(values)
    made = Settings(defaults, {key: f"AReaL's default: {key}" for key in defaults})
    return [*assignments_of(made), *assignments], note_of(defaults, values)


class _Assign(argparse.Action):
    """Keeps flags and overrides in their order; :func:`with_set` makes flags of overrides."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or flag_of(self.dest)
        value = not flag.startswith("--no-") if self.nargs == 0 else values
        try:
            given = Assignment(self.dest, value, flag)
            assignment = parse_override(values) if self.dest == "set" else given
        except ConfigError as error:
            parser.error(str(error))
        namespace.assignments = [*getattr(namespace, "assignments", ()), assignment]


class _Switch(_Assign, argparse.BooleanOptionalAction):
    """``--x`` and ``--no-x``."""


def with_set(argv: Sequence[str], model: type[BaseModel] = TrainingConfig) -> list[str]:
    """``argv`` with every bare ``key=value`` as ``--set=key=value``.

    A word right after a flag that takes a value is always that value.
    """
    switches = {"--help", "--version"}
    for name, field in model.model_fields.items():
        if bool in kinds_of(field.annotation):
            switches |= {flag_of(name), "--no" + flag_of(name)[1:]}
    words: list[str] = []
    for before, word in zip(["", *argv], argv):
        takes_value = before.startswith("--") and "=" not in before and before not in switches
        is_override = not takes_value and OVERRIDE.fullmatch(word) is not None
        words.append(f"--set={word}" if is_override else word)
    return words


def command_parser(
    prog: str, model: type[BaseModel], sections: Mapping[str, type[BaseModel]], **texts: str
) -> CommandParser:
    """A parser that lists the given flags and overrides, in their order and as text."""
    parser = CommandParser(
        prog=prog,
        variables=VARIABLES,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        **texts,
    )
    add = parser.add_argument
    add("--config", action="append", metavar="FILE", help="settings as YAML")
    parser.register("action", None, _Assign)
    parser.register("action", argparse.BooleanOptionalAction, _Switch)
    add("--set", metavar="KEY=VALUE", help="the same as a bare key=value")
    left = dict(model.model_fields)
    for title, section in sections.items():
        group = parser.add_argument_group(title, section.__doc__)
        for name in [name for name in section.model_fields if name in left]:
            options: dict[str, Any] = {"nargs": None} if name in ONE_WORD else {}
            add_flag(group, name, left.pop(name), *ALIASES.get(name, ()), **options)
    for old, new in RENAMED.items():
        if new in model.model_fields:
            add(flag_of(old), dest=old, help=argparse.SUPPRESS)
    return parser


def build_parser(prog: str = PROG) -> CommandParser:
    """The parser of the trainer's command line."""
    return command_parser(
        prog,
        TrainingConfig,
        SECTIONS,
        usage=f"{prog} [--config FILE ...] [--flag VALUE ...] [key=value ...]",
        description="Train a model on groups scored by environments.",
        epilog=EPILOG,
    )
