"""Base class of the settings sections, old option names, settings that are commands."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

# Name in release 0.2.0 -> name since.
RENAMED = {
    "warmup_share": "warmup_ratio",
    "lr_decay_share": "lr_decay_ratio",
    "max_tokens_per_pass": "max_tokens_per_microbatch",
    "epochs_per_batch": "ppo_epochs",
}

S = TypeVar("S", bound="Section")


class PlanSection(BaseModel):
    """A section of the launcher's plan."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Section(BaseModel):
    @classmethod
    def of(cls: type[S], settings: object) -> S:
        """``settings`` if it is a section of this kind, else a section with its fields.

        So the pure functions take a TrainingConfig, another object with some of its
        fields, or None. Missing fields have their defaults; given fields are not validated.
        """
        if isinstance(settings, cls):
            return settings
        fields = [name for name in cls.model_fields if hasattr(settings, name)]
        return cls.model_construct(**{name: getattr(settings, name) for name in fields})

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        settings = dict(values)
        for old in RENAMED.keys() & values.keys():
            new = RENAMED[old]
            if new not in cls.model_fields:
                continue
            if new in values:
                raise ValueError(f"{old} is the old name of {new}; give one of them")
            logging.getLogger(__name__).warning("%s", renamed_note(old))
            settings[new] = settings.pop(old)
        return settings


def renamed_note(old: str) -> str:
    return f"{old} is now named {RENAMED[old]}"


def fill_words(command: Sequence[str], **values: object) -> list[str]:
    """The command with every ``{name}`` of the values filled in.

    Plain replacement, because an argument may be JSON, whose braces must stay.
    """
    words = list(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words
