"""Settings of a curriculum: sampler and gate by name, each with its settings.

curriculum: pools                              a sampler by name
curriculum:
  sampler: {name: pools, explore: 0.2}         and its settings
  gate: band
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from atroposlib.utils.command.plugins import GATE, SAMPLER, Kind, valid_name

UNIFORM = "uniform"
SAMPLERS = (UNIFORM, "weighted", "pools", "replay", "staged")
GATES = ("band",)


class CurriculumPart(BaseModel):
    """A sampler or a gate by name; further keys are settings of its class."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(description="built-in name, MODULE:CLASS, FILE.py:CLASS or entry point")

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the class."""
        return dict(self.model_extra or {})


def _with_known_name(kind: Kind, builtins: tuple[str, ...], value: Any) -> Any:
    part = {"name": value} if isinstance(value, str) else value
    if isinstance(part, dict) and isinstance(part.get("name"), str):
        valid_name(kind, part["name"], builtins)
    return part


class CurriculumSettings(BaseModel):
    """Sampler of tasks, and gate of scored groups."""

    model_config = ConfigDict(extra="forbid")

    sampler: Annotated[
        CurriculumPart,
        BeforeValidator(lambda value: _with_known_name(SAMPLER, SAMPLERS, value)),
    ] = Field(
        default=CurriculumPart(name=UNIFORM),
        description="uniform, weighted, pools, replay, staged, or a class of yours",
    )
    gate: Annotated[
        CurriculumPart | None,
        BeforeValidator(lambda value: _with_known_name(GATE, GATES, value)),
    ] = Field(default=None, description="band, or a class of yours; None: every scored group")
    floor: float | None = Field(
        default=None,
        description="score that is no success; None: of a function that of its card, else 0",
    )
    best: float | None = Field(
        default=None,
        description="score that is full success; None: of a function that of its card, else 1",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, values: Any) -> Any:
        return {"sampler": values} if isinstance(values, str) else values

    @property
    def observes(self) -> bool:
        """Whether anything differs from the default, which draws alike and sends everything."""
        return self.gate is not None or self.sampler.name != UNIFORM
