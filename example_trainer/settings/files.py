"""Settings from YAML files and ``key=value``, translated to fields of TrainingConfig.

    files, then flags and overrides -> assignments -> references resolved -> Settings

A key is a field (``lr``), a field with its section (``optim.lr``), or AReaL's name
(``actor.optimizer.lr``). The last assignment of a setting counts, under any of its names.
``${a.b}`` is the value of another key. (omegaconf is not used, because it pins a version of
antlr4 that math-verify, which checks rewards, does not support.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment, Settings
from atroposlib.settings.sentences import did_you_mean, no_setting
from atroposlib.settings.yaml_file import parse_yaml
from example_trainer.settings.algorithms import (
    ALGORITHM_NAMES,
    KEY,
    OF_THE_RUN,
    MixtureSettings,
)
from example_trainer.settings.areal import names as areal_names
from example_trainer.settings.areal.names import (
    Combined,
    Ignored,
    Meaning,
    Renamed,
    Unsupported,
)
from example_trainer.settings.batch import BatchSettings
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.loss import AdvantageSettings, LossSettings
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import (
    EvaluationSettings,
    OriginalSettings,
    RunSettings,
    WatchSettings,
)
from example_trainer.settings.section import RENAMED, renamed_note
from example_trainer.settings.weights import WeightSettings

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "batch": BatchSettings,
    "optim": OptimSettings,
    "loss": LossSettings,
    "advantage": AdvantageSettings,
    "mixture": MixtureSettings,
    "weights": WeightSettings,
    "run": RunSettings,
    "evaluation": EvaluationSettings,
    "watch": WatchSettings,
    "original": OriginalSettings,
}
FIELDS = TrainingConfig.model_fields
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def parse_override(text: str) -> Assignment:
    """``key=value`` with a value as YAML writes it; Hydra's prefixes + and ++ are ignored."""
    match = OVERRIDE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not key=value")
    place = f"command line: {match[1]}"
    return Assignment(match[1], parse_yaml(match[2], f"command line: {text}"), place)


def translate(assignments: Sequence[Assignment]) -> Settings:
    """Settings of the trainer from assignments in order; the last of each counts.

    Raises:
        ConfigError: a key is unknown (with close matches) or refused (with the reason), a
            value has no counterpart here, or a reference is undefined or circular.
    """
    last_parts = dict.fromkeys(entry.key.rpartition(".")[2] for entry in assignments)
    meanings = [
        (assignment, meaning_of(assignment)) for assignment in resolve_references(assignments)
    ]
    settings = Settings()
    parts: dict[Any, dict[str, Any]] = {}
    last_of = {
        meaning.group: i
        for i, (_, meaning) in enumerate(meanings)
        if isinstance(meaning, Combined)
    }
    ignored: dict[str, list[str]] = {}
    for i, (assignment, meaning) in enumerate(meanings):
        if isinstance(meaning, Ignored):
            if assignment.value is not None:
                ignored.setdefault(meaning.reason, []).append(assignment.key)
        elif isinstance(meaning, Unsupported):
            if assignment.value not in (None, False):
                raise ConfigError(f"{assignment.place}: {meaning.reason}")
        elif isinstance(meaning, Combined):
            members = parts.setdefault(meaning.group, {})
            _add_member(members, meaning.name, assignment.value)
            settings.places[assignment.key.removeprefix("mixture.")] = assignment.place
            if last_of[meaning.group] == i:
                _put(settings, assignment, convert_value(assignment, meaning.group, members))
        elif assignment.value is None and (
            assignment.key not in _OURS or areal_names.is_group(assignment.key)
        ):
            settings.values.pop(meaning.field, None)  # AReaL's null: not set
        else:
            _put(
                settings,
                assignment,
                {meaning.field: convert_value(assignment, meaning.convert, assignment.value)},
            )
    belong_elsewhere = [f"{listed_keys(keys)}: {why}" for why, keys in ignored.items()]
    renamed = [renamed_note(name) for name in last_parts if name in RENAMED]
    settings.notes = renamed + settings.notes + belong_elsewhere
    return settings


def _add_member(members: dict[str, Any], name: str, value: Any) -> None:
    """Add to a group; its null and its members replace each other, but for names with a dot."""
    for option in list(members):
        if "." not in name + option and "" in (name, option):
            del members[option]
    members[name] = value


def listed_keys(keys: Iterable[str]) -> str:
    """The keys; in a long list sections with counts, except for the actor's keys."""
    keys = dict.fromkeys(keys)
    parts = dict.fromkeys(
        key if len(keys) <= 3 or key.startswith("actor.") else key.partition(".")[0]
        for key in keys
    )
    counts = {part: sum(key.startswith(f"{part}.") for key in keys) for part in parts}
    return ", ".join(f"{part}.* ({n})" if n else part for part, n in counts.items())


def convert_value(assignment: Assignment, convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except ConfigError as error:
        raise ConfigError(f"{assignment.place}: {error}") from error


def _put(settings: Settings, assignment: Assignment, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name == "note":
            settings.notes.append(f"{assignment.key}: {value}")
            continue
        settings.values[name] = as_field(name, value)
        settings.places[name] = assignment.place


def as_field(name: str, value: Any) -> Any:
    """A number for a text field becomes text, a single value for a list field a list."""
    wanted = str(FIELDS[name].annotation)
    is_list = "list[" in wanted or "List[" in wanted
    if is_list and isinstance(value, (str, int)) and "indices" not in name:
        return [value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    takes_number = "int" in wanted or "float" in wanted
    return str(value) if is_number and not is_list and not takes_number else value


# --- what a key means -------------------------------------------------------------------

_NAMES = {name: name for name in FIELDS} | RENAMED
_OURS: dict[str, Renamed] = {
    **{key: Renamed(name) for key, name in _NAMES.items()},
    **{
        f"{section}.{key}": Renamed(name)
        for section, model in SECTIONS.items()
        for key, name in _NAMES.items()
        if name in model.model_fields
    },
    # The section's short names: evaluation.where is eval_where.
    **{
        f"evaluation.{name.removeprefix('eval_')}": Renamed(name)
        for name in EvaluationSettings.model_fields
    },
    "evaluation.every": Renamed("eval_every_steps"),
    "evaluation_timeout_s": Renamed("eval_timeout_s"),
}


def _algorithms(members: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of environments by name and setting: {"gsm8k.loss": "cispo"}."""
    algorithms: dict[str, dict[str, Any]] = {}
    for key, value in members.items():
        environment, _, name = key.rpartition(".")
        algorithms.setdefault(environment, {})[name] = value
    return {KEY: algorithms}


def _is_in_algorithms(key: str) -> bool:
    return key.removeprefix("mixture.").startswith(f"{KEY}.")


def _meaning_in_algorithms(assignment: Assignment) -> Meaning:
    """The meaning of ``algorithms.ENVIRONMENT.SETTING``; the environment's name may have dots."""
    below = assignment.key.removeprefix("mixture.").removeprefix(f"{KEY}.")
    environment, _, name = below.rpartition(".")
    if not environment:
        raise ConfigError(
            f"{assignment.place} should be a mapping of settings: {KEY}: {{{name}: {{loss: ...}}}}"
        )
    if name not in ALGORITHM_NAMES and name not in OF_THE_RUN:
        known = [f"{KEY}.{environment}.{setting}" for setting in ALGORITHM_NAMES]
        raise ConfigError(no_setting(assignment.place, assignment.key, known))
    return Combined(_algorithms, f"{environment}.{name}")


def meaning_of(assignment: Assignment) -> Meaning:
    """The meaning of a key. Raises ConfigError for an unknown key."""
    if _is_in_algorithms(assignment.key):
        return _meaning_in_algorithms(assignment)
    meaning = _OURS.get(assignment.key) or areal_names.meaning_of(assignment.key)
    if meaning is not None:
        return meaning
    if areal_names.is_group(assignment.key) and assignment.value is None:
        return Ignored("")
    raise ConfigError(no_setting(assignment.place, assignment.key, known_keys()))


def is_known(assignment: Assignment) -> bool:
    """Whether a key has a meaning, here or in AReaL."""
    key = assignment.key
    is_null_group = areal_names.is_group(key) and assignment.value is None
    if _is_in_algorithms(key):
        return True
    return key in _OURS or is_null_group or areal_names.meaning_of(key) is not None


def known_keys() -> list[str]:
    return [key for key in (*_OURS, *areal_names.NAMES) if key not in RENAMED]


# --- ${references} ----------------------------------------------------------------------


def belongs_elsewhere(one: Assignment) -> bool:
    return isinstance(meaning_of(one), Ignored)


def resolve_references(
    assignments: Sequence[Assignment],
    keeps: Callable[[Assignment], bool] = belongs_elsewhere,
) -> list[Assignment]:
    """The assignments without references, which may stay where ``keeps`` is true."""
    assignments = list(_spread(assignments))
    latest: dict[str, Assignment] = {}
    for entry in assignments:
        identity = _identity(entry.key)
        if entry.key in _OURS:  # replaces AReaL's names of the setting; they keep each its own
            latest = {k: old for k, old in latest.items() if _identity(k) != identity}
        latest |= {identity: entry, entry.key: entry}

    def value_at(key: str, trail: tuple[str, ...]) -> Any:
        if key in trail:
            raise ConfigError(f"${{{key}}} refers to itself: {' -> '.join((*trail, key))}")
        identity = _identity(key)
        source = latest.get(key) or latest.get(identity)
        if source is not None and source.key not in trail:
            return of(source.value, (*trail, key))
        if identity in FIELDS and not FIELDS[identity].is_required():
            return FIELDS[identity].default
        known = [assignment.key for assignment in assignments]
        raise ConfigError(f"${{{key}}} is not given anywhere{did_you_mean(key, known)}")

    def of(value: Any, trail: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [of(item, trail) for item in value]
        if not isinstance(value, str):
            return value
        whole = REFERENCE.fullmatch(value)
        if whole is not None:
            return value_at(whole[1].strip(), trail)
        return REFERENCE.sub(lambda match: str(value_at(match[1].strip(), trail)), value)

    def with_value(entry: Assignment) -> Assignment:
        value = convert_value(entry, lambda value: of(value, (entry.key,)), entry.value)
        return replace(entry, value=value)

    return [entry if keeps(entry) else with_value(entry) for entry in assignments]


def _spread(assignments: Sequence[Assignment]) -> Iterator[Assignment]:
    """The assignments, with a reference to a section split into its given options."""
    for assignment in assignments:
        whole = (
            REFERENCE.fullmatch(assignment.value)
            if isinstance(assignment.value, str)
            else None
        )
        section = whole[1].strip() + "." if whole else "."
        options = [
            assignment.key for assignment in assignments if assignment.key.startswith(section)
        ]
        for key in dict.fromkeys(options):
            below = f"{assignment.key}.{key.removeprefix(section)}"
            yield replace(assignment, key=below, value=f"${{{key}}}")
        if not options:
            yield assignment


def _identity(key: str) -> str:
    """Identity shared by all names of a setting whose value is written alike under each."""
    meaning = _OURS.get(key) or areal_names.NAMES.get(key)
    if isinstance(meaning, Renamed) and meaning.convert is areal_names.same:
        return meaning.field
    return key
