"""Problems of a plan with its teachers: names, vocabularies, engines, losses that read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.tokenizers.loading import local_tokenizer, require_model
from atroposlib.utils.tokenizers.vocabulary import vocabulary_map
from example_trainer import losses
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import name_in_algorithms
from example_trainer.launch.servers import choose_engine, require_engine
from example_trainer.launch.teachers.wiring import POLICY, teacher_of, teachers_named
from example_trainer.settings.algorithms import algorithms_of

NAME = re.compile(r"[A-Za-z][\w-]*")


def teacher_checks(plan: Plan) -> list[Callable[[], object]]:
    """Checks of this machine; each raises ConfigError: a model or an engine is missing."""
    return [
        check
        for section in plan.teachers.values()
        for check in (
            partial(require_engine, choose_engine(section.engine), section.python),
            partial(require_model, section.model),
        )
    ]


def teacher_problems(plan: Plan) -> Iterator[str]:
    """Problems that the settings show on any machine, a sentence each."""
    cfg = trainer_settings(plan)[1]
    used = {name for wanted in plan.environments for name in teachers_named(wanted)}
    for number, wanted in enumerate(plan.environments):
        place = f"environments.{number}.config.env.teacher"
        student = (wanted.config.get("env") or {}).get("tokenizer_name") or cfg.model_name
        for name in dict.fromkeys(teachers_named(wanted)):
            if name not in plan.teachers:
                yield (
                    f"{plan.places.get(f'{place}.base_url', f'{place}.base_url')}: {name} is"
                    f" neither an address nor a teacher{did_you_mean(name, plan.teachers)}"
                    f" (teachers of the plan: {', '.join(plan.teachers) or 'none'})"
                )
            elif problem := _vocabulary_problem(student, plan.teachers[name].model):
                yield f"teachers.{name}.model: {problem}"
        own = algorithms_of(cfg).get(name_in_algorithms(plan, number), cfg)
        read = losses.teacher_losses(own) & losses.OF_CANDIDATES
        if read and teacher_of(wanted) and not teacher_of(wanted).get("top_k"):
            yield (
                f"{place}.top_k is 0, and loss {', '.join(sorted(read))} compares the likeliest"
                " tokens of the teacher: set top_k, such as 16, or take loss reverse_kl"
            )
    for name in plan.teachers:
        if not NAME.fullmatch(name) or name == POLICY:
            yield f"teachers.{name}: a name has letters, digits, _ and -, and is not {POLICY}"
        elif name not in used:
            yield (
                f"teachers.{name}: no environment has it: write teacher: {{base_url: {name}}}"
                " into the section env of one, or take it out"
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
