"""Options of a file in AReaL's form that AReaL lacks: slips of the pen, and keys of a workflow.

head of the key is a section of AReaL, or nearly a name of it   a slip: the nearest name
the rest                                                        read by a workflow: named once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment
from atroposlib.settings.sentences import ELSEWHERE, no_setting
from example_trainer.settings.areal.names import NAMES, PREFIXES
from example_trainer.settings.files import FIELDS, is_known, known_keys, listed_keys

SECTIONS = {key.partition(".")[0] for key in (*NAMES, *PREFIXES) if "." in key} | {"model"}
NEARLY = 0.9  # "gcofig" is nearly gconfig, and "econfig", of AReaL's examples, is not
MAX_HINTS = 3


def unknown_options(assignments: Iterable[Assignment]) -> dict[str, Assignment]:
    """The last assignment of each key that AReaL and this trainer lack.

    A null takes out its key, and all keys below it.

    Raises ConfigError: a key is a slip of the pen; names the nearest key.
    """
    unknown: dict[str, Assignment] = {}
    for assignment in assignments:
        key = assignment.key
        if is_known(assignment):
            continue
        below = [name for name in unknown if name == key or name.startswith(f"{key}.")]
        for name in below:
            del unknown[name]
        if assignment.value is not None:
            unknown[key] = assignment
    for assignment in unknown.values():
        if _is_slip(assignment.key):
            raise ConfigError(no_setting(assignment.place, assignment.key, known_keys()))
    return unknown


def _is_slip(key: str) -> bool:
    head, dot, _ = key.partition(".")
    if dot and head in SECTIONS:
        return True
    names = {*SECTIONS, *(name for name in (*NAMES, *FIELDS) if "." not in name)}
    return head in ELSEWHERE or bool(get_close_matches(head, names, n=1, cutoff=NEARLY))


def sentence_of_unknown(
    unknown: Mapping[str, Any], environment: str | None, fields: Iterable[str] = ()
) -> str:
    """The sentence about the keys of a workflow: key -> value.

    Args:
        environment: of ``--env``; None: none is named.
        fields: names of its settings.
    """
    start = f"{listed_keys(unknown)}: AReaL has no such option"
    if environment is None:
        return (
            f"{start}; if the workflow reads it, give env.KEY=VALUE to the environment of --env,"
            " or take it out (KEY=null)"
        )
    alike = [
        f"env.{last}={value} for {key}"
        for key, value in unknown.items()
        if (last := key.rpartition(".")[2]) in set(fields)
    ]
    hint = f", such as {', '.join(alike[:MAX_HINTS])}" if alike else ""
    return (
        f"{start}, and the environment {environment} no setting of the name; if it is to read it,"
        f" write env.NAME=VALUE by a name of `atropos env info`{hint}, or take it out (KEY=null)"
    )


def require_known(assignments: Iterable[Assignment]) -> None:
    """Raise ConfigError for options that neither AReaL nor the trainer has; names all at once."""
    if unknown := unknown_options(assignments):
        raise ConfigError(sentence_of_unknown(unknown, None))
