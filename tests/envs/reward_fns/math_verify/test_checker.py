"""Verdicts on boxed answers; a check that hangs or fails returns no verdict instead of zero."""

from __future__ import annotations

from decimal import Decimal

import pytest

from atroposlib.envs.reward_fns.math_verify import checker
from atroposlib.envs.reward_fns.math_verify.checker import (
    Correctness,
    MathVerifier,
    after_thinking,
    as_number,
    boxed_answer,
)
from atroposlib.errors import ConfigError


@pytest.fixture
async def verifier():
    verifier = MathVerifier(timeout_s=20.0)
    yield verifier
    await verifier.close()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{72}", "72"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} and \boxed{4", "3"),
        ("72", None),
        (r"\boxed{", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_the_answer(text, answer):
    assert boxed_answer(text) == answer


def test_only_text_after_the_reasoning_is_checked():
    assert after_thinking(r"<think>\boxed{1}</think>\boxed{2}") == r"\boxed{2}"
    assert after_thinking("no tags") == "no tags"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("-3.50", Decimal("-3.5")),
        ("$1,234", 1234),
        (r"\$ 5", 5),
        ("18.", 18),
        ("50%", 50),
        (".5", Decimal("0.5")),
        ("1,2", None),
        ("72 apples", None),
        ("", None),
        (".", None),
        ("1e5", None),
    ],
)
def test_plain_numbers_are_parsed_without_math_verify(text, number):
    assert as_number(text) == number


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (r"\boxed{72}", "72", Correctness.CORRECT),
        (r"\boxed{72.0}", "72", Correctness.CORRECT),
        (r"\boxed{1,000}", "1000", Correctness.CORRECT),
        (r"\boxed{71}", "72", Correctness.WRONG),
        ("72", "72", Correctness.WRONG),
        (r"<think>\boxed{72}</think> it is 72", "72", Correctness.WRONG),
        (r"\boxed{" + "1" * 600 + "}", "72", Correctness.WRONG),
    ],
)
async def test_numbers_are_checked_in_the_same_process(verifier, text, gold, verdict):
    assert await verifier.check(text, gold) is verdict
    assert not verifier.processes[0].started


async def test_expressions_are_checked_by_math_verify_even_after_one_that_hangs(
    verifier, caplog
):
    assert await verifier.check(r"\boxed{\frac{144}{2}}", "72") is Correctness.CORRECT
    assert await verifier.check(r"\boxed{x+1}", "72") is Correctness.WRONG
    assert await verifier.check(r"\boxed{}{", "72") is Correctness.WRONG
    (process,) = verifier.processes
    process.timeout_s = 0.5
    assert await verifier.check("\\boxed{9^{9^{9}}}", "72") is None
    assert "within 0.5 s" in caplog.text
    process.timeout_s = 20.0
    assert await verifier.check(r"\boxed{2 \cdot 36}", "72") is Correctness.CORRECT


def test_a_missing_math_verify_is_an_error_with_its_extra_before_the_first_check(monkeypatch):
    monkeypatch.setattr(checker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'atropos-rl\[math\]'"):
        MathVerifier()
