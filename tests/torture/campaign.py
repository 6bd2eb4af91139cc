"""A campaign: one check of a promise, in three sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.torture.figures import Figures


@dataclass(frozen=True)
class Campaign:
    """``run(size, seed)`` raises AssertionError at a broken promise."""

    run: Callable[[int, int], Figures]
    unit: str
    quick: int  # of `make test`; 0: not part of it
    whole: int  # of `make campaign`; 0: another test does the same
    long: int  # of `make torture`


def whole_sizes(campaigns: dict[str, Campaign]) -> Callable[..., None]:
    """Test of each campaign whose whole size is larger than the quick one."""
    larger = [name for name, one in campaigns.items() if 0 < one.quick < one.whole]

    @pytest.mark.campaign
    @pytest.mark.parametrize("name", larger)
    def test_no_promise_is_broken_at_the_whole_size(
        name: str, torture: Callable[..., Figures]
    ) -> None:
        torture(campaigns, name, whole=True)

    return test_no_promise_is_broken_at_the_whole_size
