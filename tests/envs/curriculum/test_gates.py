"""The success band."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.gates import SuccessBand
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group, rows


def test_a_band_admits_success_within_its_bounds():
    [task] = rows(1)
    gate = SuccessBand()
    half = [1.0] * 5
    admitted = [
        gate.admit(group(task, *half[:ones], *[0.0] * (5 - ones))) for ones in range(6)
    ]
    assert admitted == [False, True, True, True, True, False]  # 0.2 and 0.8 are within
    assert not gate.admit(group(task))
    assert gate.reason == "success outside of 0.2 to 0.8"


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ConfigError, match="in order"):
        SuccessBand(low=0.9, high=0.1)
