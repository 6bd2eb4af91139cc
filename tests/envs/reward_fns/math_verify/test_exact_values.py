"""Values that math-verify rounds to one, and values that only look different."""

from __future__ import annotations

import pytest

sympy = pytest.importorskip("sympy")


def differ(value, gold):
    from atroposlib.envs.reward_fns.math_verify.exact_values import differ

    return differ(value, gold)


def of(text):
    return sympy.sympify(text, evaluate=False)


@pytest.mark.parametrize(
    ("value", "gold"),
    [
        ("1/factorial(2004)", "1/factorial(2006)"),
        ("(factorial(99) + 1)/factorial(99)", "(factorial(99) + 2)/factorial(99)"),
        ("2**-100", "2**-101"),
        ("0.0000001", "0.0000005"),
        ("sqrt(10**40 + 1)", "10**20"),
        ("exp(-50)", "exp(-51)"),
    ],
)
def test_values_that_differ_by_more_than_rounding_differ(value, gold):
    assert differ(of(value), of(gold)) and differ(of(gold), of(value))
    assert differ(sympy.FiniteSet(of(value)), sympy.FiniteSet(of(gold)))
    assert differ(sympy.Matrix([of(value)]), sympy.Matrix([of(gold)]))


@pytest.mark.parametrize(
    ("value", "gold"),
    [
        ("1/3", "0.333333"),
        ("sqrt(8)", "2*sqrt(2)"),
        ("factorial(10)/factorial(8)", "90"),
        ("10**30", "1000000000000000000000000000000"),
        ("x + 1", "x + 2"),  # no numbers: left to math-verify
    ],
)
def test_equal_values_and_expressions_do_not(value, gold):
    assert not differ(of(value), of(gold))


def test_a_division_by_zero_is_undefined():
    from atroposlib.envs.reward_fns.math_verify.exact_values import is_undefined

    assert is_undefined(of("12/0")) and is_undefined(sympy.zoo) and is_undefined(sympy.nan)
    assert not is_undefined(of("12/15")) and not is_undefined("12:00")
