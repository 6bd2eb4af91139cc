"""Problems of a plan with its teachers: names, vocabularies, losses that read likely tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.tokenizers.loading import local_tokenizer
from atroposlib.utils.tokenizers.vocabulary import vocabulary_map
from example_trainer import losses
from example_trainer.launch.teachers.section import TeacherSection
from example_trainer.launch.teachers.wiring import (
    POLICY,
    HasTeacher,
    teacher_of,
    teachers_named,
)
from example_trainer.settings.loss import LossSettings

NAME = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class TaughtEnvironment:
    """An environment of the plan, with what its teacher has to fit."""

    section: HasTeacher
    place: str  # where its base_url stands
    tokenizer: str  # the trained model's
    loss: LossSettings


def teacher_problems(
    teachers: Mapping[str, TeacherSection], environments: Sequence[TaughtEnvironment]
) -> Iterator[str]:
    """Problems that the settings show on any machine, a sentence each."""
    used = {name for own in environments for name in teachers_named(own.section)}
    for own in environments:
        for name in dict.fromkeys(teachers_named(own.section)):
            if name not in teachers:
                yield (
                    f"{own.place}: {name} is neither an address nor a teacher"
                    f"{did_you_mean(name, teachers)} (teachers of the plan:"
                    f" {', '.join(teachers) or 'none'})"
                )
            elif problem := _vocabulary_problem(own.tokenizer, teachers[name].model):
                yield f"teachers.{name}.model: {problem}"
        read = losses.teacher_losses(own.loss) & losses.OF_CANDIDATES
        if read and teacher_of(own.section) and not teacher_of(own.section).get("top_k"):
            yield (
                f"{own.place.removesuffix('base_url')}top_k is 0, and loss"
                f" {', '.join(sorted(read))} compares the likeliest tokens of the teacher: set"
                " top_k, such as 16, or take loss reverse_kl"
            )
    for name in teachers:
        if not NAME.fullmatch(name) or name == POLICY:
            yield f"teachers.{name}: a name has letters, digits, _ and -, and is not {POLICY}"
        elif name not in used:
            yield (
                f"teachers.{name}: no environment has it: write teacher: {{base_url: {name}}}"
                " into the section env of an environment, or take it out"
            )


def _vocabulary_problem(student: str, teacher: str) -> str | None:
    """The reason why a teacher cannot judge, where both tokenizers are on this machine."""
    ours, theirs = local_tokenizer(student), local_tokenizer(teacher)
    if ours is None or theirs is None:
        return None
    try:
        vocabulary_map(ours, theirs, (student, teacher))
    except ConfigError as error:
        return str(error)
    return None
