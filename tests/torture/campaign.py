"""A campaign: one check of a promise, in three sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.torture.figures import Figures


@dataclass(frozen=True)
class Campaign:
    """``run(size, seed)`` raises AssertionError at a broken promise."""

    run: Callable[[int, int], Figures]
    unit: str
    quick: int  # of `make test`; 0: not part of it
    whole: int  # of `make campaign`; 0: another test does the same
    long: int  # of `make torture`
