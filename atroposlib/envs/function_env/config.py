"""Settings of function environments: config class made from keyword arguments.

keywords of @environment -> new defaults      settings={...} -> new fields and flags
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from atroposlib.envs.cli import name_rejected_settings
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.generation.routing.opponents import PoolRule
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.cli import with_default


class FunctionEnvConfig(BaseEnvConfig):
    """Settings of every function environment, in addition to the settings of all environments."""

    temperature: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="of training rollouts"
    )
    max_tokens: int = Field(default=512, ge=1, description="most tokens of one reply")
    stop: list[str] = Field(
        default_factory=list, description="stop strings of every reply, also to agents"
    )
    describe_tools: bool = Field(
        default=False,
        description="describe tools in a system message if the chat template ignores them",
    )
    gold_examples: int = Field(
        default=0, ge=0, description="worked examples before each task: gold replies of a card"
    )
    epochs: int = Field(default=-1, description="passes over the data set; -1: endless")
    shuffle: bool = Field(
        default=True, description="another order in every pass; a generator keeps its own"
    )
    eval_fraction: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="about this share of the data is held out where there is no eval_dataset",
    )
    eval_items: int = Field(default=-1, description="held-out items evaluated; -1: all")
    eval_samples: int = Field(default=1, ge=1, description="rollouts of each held-out item")
    eval_temperature: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="of evaluation; 0: greedy"
    )
    opponent_pool: PoolRule = Field(
        default="age",
        description="choice among the earlier versions that the servers hold: age, all alike, or"
        " win_rate, those more often against which the policy scores little",
    )
    opponent_score: str = Field(
        default="reward",
        description="number of a rollout, 0 to 1, that win_rate takes: a named reward, or reward",
    )
    opponent_urls: list[str] = Field(
        default_factory=list,
        description="further servers of earlier versions, each with a model named NAME@VERSION",
    )
    reward_weights: dict[str, float] = Field(
        default_factory=dict,
        description="weights of named rewards that differ from the code's",
    )


def config_class(
    name: str,
    base: type[BaseEnvConfig],
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> type[FunctionEnvConfig]:
    """A config class with the fields of ``base``, the new ``settings`` and the new ``defaults``.

    ``settings`` maps a name to a default, to a ``Field(...)`` or to ``(type, Field(...))``.
    Raises ConfigError: a default has no field, or the field does not accept it.
    """
    bases: tuple[type[BaseEnvConfig], ...] = (base, FunctionEnvConfig)
    if issubclass(base, FunctionEnvConfig):
        bases = (base,)
    known = {**FunctionEnvConfig.model_fields, **base.model_fields}
    fields = {key: _new_field(name, key, value, known) for key, value in settings.items()}
    for key, value in defaults.items():
        if key not in known:
            hint = did_you_mean(key, [*known, *settings])
            raise ConfigError(
                f"{name}: {key!r} is no setting, and new ones go into settings={{...}}{hint}"
            )
        fields[key] = with_default(known[key], value)
    made = create_model(
        f"{name.title().replace('_', '')}Config",
        __base__=bases,
        __doc__=f"Settings of the environment {name!r}.",
        **fields,
    )
    with name_rejected_settings(name):
        made(**defaults)
    return cast(type[FunctionEnvConfig], made)


def _new_field(name: str, key: str, value: Any, known: Mapping[str, FieldInfo]) -> Any:
    if key in known:
        raise ConfigError(f"{name}: {key!r} is a setting already; give it as {key}=...")
    if isinstance(value, tuple):
        return value
    if not isinstance(value, FieldInfo):
        value = Field(default=value)
    example = value.get_default(call_default_factory=True, validated_data={})
    return (Any if example is None else type(example), value)
