"""Samplers and gates by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.curriculum.gates import SuccessBand
from atroposlib.envs.curriculum.interface import GroupGate, Task, TaskSampler
from atroposlib.envs.curriculum.pools import DifficultyPools
from atroposlib.envs.curriculum.samplers import ReplayUseful, Uniform, Weighted
from atroposlib.envs.curriculum.staged import Staged
from atroposlib.envs.settings.curriculum_settings import CurriculumPart
from atroposlib.errors import ConfigError, boundary
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command.plugins import GATE, SAMPLER, Kind, load_plugin

SAMPLER_CLASSES: dict[str, type[TaskSampler]] = {
    "uniform": Uniform,
    "weighted": Weighted,
    "pools": DifficultyPools,
    "replay": ReplayUseful,
    "staged": Staged,
}
GATE_CLASSES: dict[str, type[GroupGate]] = {"band": SuccessBand}


def make_sampler(
    part: CurriculumPart, tasks: Sequence[Task], *, seed: int, env: str
) -> TaskSampler:
    """The sampler of the settings. Raises ConfigError: a setting of it cannot be used."""
    arguments = {"tasks": tasks, "seed": seed}
    made: TaskSampler = _instance(SAMPLER, part, SAMPLER_CLASSES, TaskSampler, arguments, env)
    return made


def make_gate(part: CurriculumPart, *, env: str) -> GroupGate:
    """The gate of the settings. Raises ConfigError: a setting of it cannot be used."""
    made: GroupGate = _instance(GATE, part, GATE_CLASSES, GroupGate, {}, env)
    return made


def _instance(
    kind: Kind,
    part: CurriculumPart,
    builtins: Mapping[str, type[Any]],
    base: Any,
    arguments: Mapping[str, Any],
    env: str,
) -> Any:
    cls: Any = builtins.get(part.name) or load_plugin(kind, part.name)
    where = f"{env}: curriculum, {kind.name} {part.name}"
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(f"{where}: not a subclass of {base.__module__}.{base.__name__}")
    known = [name for name in inspect.signature(cls).parameters if name not in arguments]
    for name in part.settings:
        if name not in known:
            hint = did_you_mean(name, known)
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{where}: no setting {name!r}{hint}; there are: {listed}")
    try:
        inspect.signature(cls).bind(**arguments, **part.settings)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error
    if part.name in builtins:
        return cls(**arguments, **part.settings)
    with boundary(env, None, f"{kind.name} {part.name}", cls):
        return cls(**arguments, **part.settings)
