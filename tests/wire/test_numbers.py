"""Bounds of 64 bits and of finite floats."""

from __future__ import annotations

import pytest

from atroposlib.wire.numbers import finite_float, int64


@pytest.mark.parametrize(
    ("value", "bounded"),
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, None),
        (-(2**63) - 1, None),
        (10**400, None),
        (1.0, None),
        ("1", None),
        (None, None),
    ],
)
def test_a_whole_number_has_64_bits(value, bounded):
    assert int64(value) == bounded


@pytest.mark.parametrize(
    ("value", "bounded"),
    [
        (1, 1.0),
        (2**64, 2.0**64),
        (10**400, None),
        (-(10**400), None),
        (float("inf"), None),
        (float("nan"), None),
        ("1", None),
    ],
)
def test_a_finite_number_fits_a_double(value, bounded):
    assert finite_float(value) == bounded
