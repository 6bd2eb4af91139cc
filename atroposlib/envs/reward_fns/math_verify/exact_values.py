"""Differences that math-verify rounds away. Imports sympy: only for its process."""

from __future__ import annotations

from typing import Any

import sympy

from atroposlib.errors import AtroposError

# Largest relative difference of equal decimals: 1/3 is 0.333333.
TOLERANCE = 1e-5
DIGITS = 30  # digits of an approximate value
_HUNDREDTH = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # the % of math-verify


class Undecided(AtroposError):
    """Two values are so close that it is unknown whether they are equal."""


def is_undefined(value: Any) -> bool:
    """Whether a division by zero occurs, as in the reading 12/00 of the time 12:00."""
    if not isinstance(value, sympy.Basic):
        return False
    return bool(value.has(sympy.nan, sympy.zoo)) or any(
        power.exp.is_negative and power.base.is_zero for power in value.atoms(sympy.Pow)
    )


def differ(value: Any, gold: Any) -> bool:
    """Whether values that math-verify found equal are different.

    It rounds to decimals that do not depend on the size: 1/2004! and 1/2006! are both 0. Exact
    values have to be equal exactly, decimals up to TOLERANCE of their size. Values that are no
    numbers are not looked at. Raises Undecided.
    """
    if isinstance(value, sympy.MatrixBase) and isinstance(gold, sympy.MatrixBase):
        return value.shape == gold.shape and any(map(differ, value.flat(), gold.flat()))
    if isinstance(value, (sympy.Set, sympy.Tuple)) and value.func is gold.func:
        same_size = len(value.args) == len(gold.args)
        return same_size and any(map(differ, value.args, gold.args))
    if not isinstance(value, sympy.Expr) or not isinstance(gold, sympy.Expr):
        return False
    if value == gold or value.has(_HUNDREDTH) or gold.has(_HUNDREDTH):  # 9% equals 9
        return False
    return bool(value.is_number and gold.is_number) and _numbers_differ(value, gold)


def _numbers_differ(value: sympy.Expr, gold: sympy.Expr) -> bool:
    a, b = value.evalf(DIGITS), gold.evalf(DIGITS)
    if not (a.is_finite and b.is_finite):
        return False
    if abs(a - b) > TOLERANCE * max(abs(a), abs(b)):
        return True
    if value.has(sympy.Float) or gold.has(sympy.Float):
        return False
    same = (value.doit() - gold.doit()).equals(0)
    if same is None:
        raise Undecided("the values are too close to be compared")
    return not same
