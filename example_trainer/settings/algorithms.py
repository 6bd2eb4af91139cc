"""An algorithm per environment: settings of the loss and of advantages that differ within a run.

algorithms:
  gsm8k: {loss: cispo, advantage: rloo, weight: 2}     further settings are the run's
  tools: {loss: cross_entropy, temperature: 0.7}

A batch splits into parts by the environment of a row: a part per named environment, and one of the
run's settings for the rest. The loss is exactly the sum of share x loss of a part, where

    share    weight x the part of the batch's tokens or sequences, or the weight alone (``mixing``)
    loss     of the part's rows under its own ``loss_aggregation``, as if they were the batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, field_serializer, field_validator

from atroposlib.settings.sentences import Contradiction
from atroposlib.settings.yaml_file import parse_yaml
from example_trainer.settings.loss import CLIPPED, LossName, ObjectiveSettings
from example_trainer.settings.section import Section

KEY = "algorithms"
MAX_WEIGHT = 1e6  # as of a share of the batches
REST = "rest"  # name of the rows whose environment has no entry
# These settings belong to a model that all environments share, or to the rows of a batch.
OF_THE_RUN = frozenset(
    {
        "unknown_temperature",
        "critic",
        "critic_model",
        "critic_lr",
        "critic_clip_eps",
    }
)
# Bounds of the run's loss mean nothing in another loss, which has its own defaults.
OF_A_LOSS = frozenset({"clip_eps", "clip_eps_high", "dual_clip"})


class Algorithm(ObjectiveSettings):
    """Settings of an environment; settings that it does not name are the run's."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(
        1.0, gt=0, le=MAX_WEIGHT, allow_inf_nan=False, description="factor of its loss"
    )
    temperature: float | None = Field(
        None,
        ge=0,
        description="at which its tokens were sampled: assumed where rows name none, and rows that"
        " name a different temperature end the run (default: what the rows name)",
    )


ALGORITHM_NAMES = tuple(name for name in Algorithm.model_fields if name not in OF_THE_RUN)


class MixtureSettings(Section):
    """Algorithms of environments, and the share of each in the loss."""

    algorithms: dict[str, Algorithm] = Field(
        {},
        description="name of an environment: its settings of the sections loss and advantage, its"
        " weight and temperature; as YAML {gsm8k: {loss: cispo, weight: 2}}",
    )
    mixing: Literal["tokens", "sequences", "environments"] | None = Field(
        None,
        description="share of an environment in the loss: its weight times its part of the trained"
        " tokens, or of the sequences, or the weight alone (default: as loss_aggregation)",
    )

    @field_validator(KEY, mode="before")
    @classmethod
    def _read_flag(cls, value: Any) -> Any:
        return parse_yaml(value, KEY) if isinstance(value, str) else value

    @field_serializer(KEY)
    def _only_what_is_named(self, value: dict[str, Algorithm]) -> dict[str, Any]:
        return {name: own.model_dump(exclude_unset=True) for name, own in value.items()}


@dataclass(frozen=True)
class BatchPart:
    """Rows of a batch that have the same algorithm."""

    name: str | None  # the environment; None: the only algorithm of the run
    settings: ObjectiveSettings
    places: list[int]  # places of its rows in the batch
    weight: float = 1.0


def parts_of(
    settings: ObjectiveSettings, environments: Sequence[str | None]
) -> list[BatchPart]:
    """The parts of a batch, of whose rows ``environments`` are the names; none is empty.

    Without algorithms, and in an empty batch, there is a single part of the run's settings.
    """
    algorithms = algorithms_of(settings)
    if not algorithms or not environments:
        return [BatchPart(None, settings, list(range(len(environments))))]
    places: dict[str, list[int]] = {name: [] for name in (*algorithms, REST)}
    for place, environment in enumerate(environments):
        is_named = environment is not None and environment in algorithms
        places[str(environment) if is_named else REST].append(place)
    parts = [
        BatchPart(name, own, places[name], own.weight)
        for name, own in algorithms.items()
        if places[name]
    ]
    return parts + ([BatchPart(REST, settings, places[REST])] if places[REST] else [])


def algorithms_of(settings: ObjectiveSettings) -> dict[str, Algorithm]:
    """The whole settings of each environment with an entry."""
    if not isinstance(settings, MixtureSettings):
        return {}
    return {name: _over(settings, own) for name, own in settings.algorithms.items()}


def _over(base: ObjectiveSettings, own: Algorithm) -> Algorithm:
    """The settings of an environment over the run's."""
    inherited = base.model_fields_set & ObjectiveSettings.model_fields.keys()
    named = own.model_fields_set
    if "loss" in named and own.loss != base.loss:
        inherited -= OF_A_LOSS
    values = {name: getattr(base, name) for name in inherited}
    return Algorithm(**values | {name: getattr(own, name) for name in named})


def shares_of(
    parts: Sequence[BatchPart], lengths_R: Sequence[int], mixing: str
) -> list[float]:
    """The factor of each part's own loss in the loss of the batch.

    Args:
        lengths_R: trained tokens of the rows of the batch.
    """
    if mixing == "environments":
        return [part.weight for part in parts]
    counts = [len(part.places) for part in parts]
    if mixing == "tokens":
        counts = [sum(lengths_R[place] for place in part.places) for part in parts]
    total = max(1, sum(counts))
    # An empty batch has a single part, whose share is 1.
    return [part.weight * (count or total) / total for part, count in zip(parts, counts)]


def mixing_of(settings: ObjectiveSettings) -> str:
    """The rule of shares; by default the unit that the run's aggregation counts in."""
    if isinstance(settings, MixtureSettings) and settings.mixing is not None:
        return settings.mixing
    return "tokens" if settings.loss_aggregation == "token" else "sequences"


# Names of settings, whether the settings contradict, and why.
Check = tuple[tuple[str, ...], bool, str]


def objective_checks(settings: ObjectiveSettings) -> Iterator[Check]:
    """Checks of an algorithm: of the run's, and of each environment's."""
    yield (
        ("critic", "advantage"),
        settings.critic and settings.advantage != "gae",
        "a critic only serves advantage gae; set --advantage gae or leave critic out",
    )
    yield (
        ("overlong_tokens", "max_new_tokens"),
        settings.overlong_tokens > 0 and settings.max_new_tokens is None,
        "overlong_tokens counts back from max_new_tokens; set that as well",
    )
    yield (
        ("kl_estimator", "kl_in", "kl_coef"),
        settings.kl_coef > 0 and settings.kl_in == "loss" and settings.kl_estimator == "k1",
        "k1 has no gradient on average, so a KL in the loss would do nothing; use k2"
        " or k3, or kl_in: reward",
    )
    yield (
        ("importance_floor", "importance_cap"),
        settings.importance_floor > settings.importance_cap,
        "importance_floor is above importance_cap",
    )
    yield (
        ("dual_clip", "loss"),
        settings.dual_clip is not None and settings.loss in {*get_args(LossName)} - {*CLIPPED},
        f"dual_clip has no meaning in loss {settings.loss}; leave it out",
    )


def mixture_contradictions(settings: ObjectiveSettings) -> Iterator[Contradiction]:
    """Contradictions within the settings of each environment, under its name."""
    if not isinstance(settings, MixtureSettings):
        return
    if settings.mixing is not None and not settings.algorithms:
        yield Contradiction(
            ("mixing",),
            "mixing shares the loss among algorithms; set algorithms, or leave it out",
        )
    base_wrong = {why for _, is_wrong, why in objective_checks(settings) if is_wrong}
    for name, own in settings.algorithms.items():
        above = f"{KEY}.{name}"
        for setting in sorted(own.model_fields_set & OF_THE_RUN):
            yield Contradiction(
                (f"{above}.{setting}",),
                f"{above}: {setting} is set for the whole run, outside of {KEY}",
            )
        for names, is_wrong, why in objective_checks(_over(settings, own)):
            if is_wrong and why not in base_wrong:
                keys = [f"{above}.{entry}" for entry in names if entry in own.model_fields_set]
                yield Contradiction((*keys, *names), f"{above}: {why}")
