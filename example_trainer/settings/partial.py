"""Settings of callers that have only some of them."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def complete(cfg: object, kind: type[M]) -> M:
    """``cfg`` itself if it is of ``kind``, else a ``kind`` with the fields that ``cfg`` has.

    So the pure functions take a TrainingConfig, any object with some of its fields, or
    None. What is missing has its default; what is there is taken as it is, unchecked.
    """
    if isinstance(cfg, kind):
        return cfg
    given = {name: getattr(cfg, name) for name in kind.model_fields if hasattr(cfg, name)}
    return kind.model_construct(**given)
