"""Numbers within 64 bits, as stores, indexes and programs in any language can hold."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]


def int64(value: Any) -> int | None:
    """The integer, if it fits in 64 bits; None for anything else."""
    fits = isinstance(value, int) and INT64_MIN <= value <= INT64_MAX
    return value if fits else None


def finite_float(value: Any) -> float | None:
    """The number as a finite float; None for anything else, e.g. 1 with 400 zeros."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def natural_of(text: str) -> int | None:
    """The number of at most 18 ASCII digits; None for any other text."""
    known = text.isascii() and text.isdecimal() and len(text) <= 18
    return int(text) if known else None
